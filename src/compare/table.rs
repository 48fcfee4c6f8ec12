//! The report: medians over the rounds, the spread of the ratio, CPU time, and what failed.

use super::child::Usage;
use super::place::Places;
use super::stack::Stack;
use super::workload::{Metric, Workload};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// One measurement of one workload on one stack.
pub struct Sample {
    /// In the order of the workload's metrics.
    pub values: Vec<f64>,
    /// Server, client and daemons.
    pub cpu: Usage,
    /// The client's life.
    pub wall: Duration,
}

/// All measurements.
pub struct Report {
    stacks: Vec<(&'static str, bool)>,
    rows: Vec<Row>,
    link: Vec<f64>,
    rounds: u32,
    missing: Vec<&'static str>,
    cubic: bool,
    failures: Vec<String>,
}

struct Row {
    name: &'static str,
    metrics: &'static [Metric],
    /// `[stack][round]`; a failed measurement is `None`.
    samples: Vec<Vec<Option<Sample>>>,
}

impl Report {
    /// An empty one.
    pub fn new(stacks: &[Stack], workloads: &[Workload], rounds: u32, places: &Places) -> Report {
        let none = || stacks.iter().map(|_| vec![]).collect();
        Report {
            stacks: stacks.iter().map(|s| (s.name, s.kernel)).collect(),
            rows: workloads.iter().map(|w| Row { name: w.name, metrics: w.metrics, samples: none() }).collect(),
            link: vec![],
            rounds,
            missing: places.missing.clone(),
            cubic: places.cubic,
            failures: vec![],
        }
    }

    /// Adds a measurement of `workload` on stack number `stack`.
    pub fn add(&mut self, workload: &Workload, stack: usize, sample: Result<Sample, String>) {
        let Some(row) = self.rows.iter_mut().find(|r| r.name == workload.name) else { return };
        let sample = sample.map_err(|e| self.failures.push(e)).ok();
        row.samples[stack].push(sample);
    }

    /// Adds a measurement of the raw link, in Gb/s.
    pub fn link(&mut self, rate: Result<f64, String>) {
        match rate {
            Ok(rate) => self.link.push(rate),
            Err(e) => self.failures.push(format!("raw PCIeLINK: {e}")),
        }
    }

    /// What went wrong: wrong bytes, programs that failed or printed no figures.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut lines = vec![self.heading()];
        for row in &self.rows {
            for (m, metric) in row.metrics.iter().enumerate() {
                lines.push(self.line(row, m, metric));
            }
        }
        let mut out = align(&lines);
        let _ =
            writeln!(out, "\nMedians of {} round(s). Ratio: engine to kernel, of each round (min..max).", self.rounds);
        let _ = writeln!(out, "CPU: seconds of user and system time a second, of client, server and daemons together.");
        out += &self.link_text();
        if !self.cubic {
            out += "The kernel does not allow this user CUBIC: \"kernel lo\" ran with the kernel's default.\n";
        }
        if !self.missing.is_empty() {
            let _ = writeln!(out, "Not installed, so not measured: {}.", self.missing.join(", "));
        }
        match self.failures.len() {
            0 => out += "All programs ended well; every byte of toe-peer was compared.\n",
            n => {
                let _ = writeln!(out, "\n{n} FAILED:\n{}", self.failures.join("\n"));
            }
        }
        out
    }

    /// For programs.
    pub fn json(&self) -> String {
        let rows: Vec<Value> = self.rows.iter().map(|r| self.row_json(r)).collect();
        let report = json!({
            "rounds": self.rounds,
            "raw_pcielink_gbit_s": self.link,
            "workloads": rows,
            "missing": self.missing,
            "kernel_cubic": self.cubic,
            "failures": self.failures,
            "verified": self.failures.is_empty(),
        });
        format!("{report:#}\n")
    }

    fn row_json(&self, row: &Row) -> Value {
        let stacks = self.stacks.iter().zip(&row.samples).map(|((name, _), samples)| {
            let taken: Vec<Value> = samples.iter().flatten().map(sample_json).collect();
            json!({ "stack": name, "samples": taken })
        });
        json!({ "name": row.name, "metrics": row.metrics, "stacks": stacks.collect::<Vec<_>>() })
    }

    fn heading(&self) -> Vec<String> {
        let mut cells = vec!["workload".to_string()];
        cells.extend(self.stacks.iter().map(|s| s.0.to_string()));
        cells.extend(self.kernels().map(|k| format!("ratio to {}", self.stacks[k].0)));
        cells.extend(self.stacks.iter().map(|s| format!("CPU {}", s.0)));
        cells
    }

    fn line(&self, row: &Row, m: usize, metric: &Metric) -> Vec<String> {
        let mut cells = vec![format!("{} {}, {}", row.name, metric.name, metric.unit)];
        for samples in &row.samples {
            cells.push(median(samples.iter().flatten().map(|s| s.values[m])).map_or("failed".into(), number));
        }
        for k in self.kernels() {
            cells.push(self.engine().and_then(|e| ratio(&row.samples[k], &row.samples[e], m)).unwrap_or("-".into()));
        }
        for samples in &row.samples {
            let cpu = samples.iter().flatten().map(|s| s.cpu.total() / s.wall.as_secs_f64());
            cells.push(median(cpu).map_or("-".into(), |c| format!("{c:.2}")));
        }
        cells
    }

    fn link_text(&self) -> String {
        let Some(link) = median(self.link.iter().copied()) else { return String::new() };
        let stream = self.rows.iter().find(|r| r.name == "stream, 1 flow");
        let engine = self.engine().zip(stream).map(|(e, r)| r.samples[e].iter().flatten().map(|s| s.values[0]));
        let share = engine.and_then(median).map(|s| format!("; TCP's one flow is {:.2} of it", s / link));
        format!(
            "Raw PCIeLINK, memory to memory, frames of 64 KiB, measured in each round: {link:.1} Gb/s{}.\n",
            share.unwrap_or_default()
        )
    }

    fn kernels(&self) -> impl Iterator<Item = usize> {
        let both = self.engine().is_some();
        (0..self.stacks.len()).filter(move |i| both && self.stacks[*i].1)
    }

    fn engine(&self) -> Option<usize> {
        self.stacks.iter().position(|s| !s.1)
    }
}

fn sample_json(s: &Sample) -> Value {
    json!({ "values": s.values, "user_s": s.cpu.user, "system_s": s.cpu.system, "wall_s": s.wall.as_secs_f64() })
}

/// Ratio of medians, and the smallest and largest ratio of a round.
fn ratio(kernel: &[Option<Sample>], engine: &[Option<Sample>], m: usize) -> Option<String> {
    let rounds = kernel.iter().zip(engine).filter_map(|(k, e)| Some(e.as_ref()?.values[m] / k.as_ref()?.values[m]));
    let rounds: Vec<f64> = rounds.collect();
    let middle = median(rounds.iter().copied())?;
    let (min, max) = rounds.iter().fold((f64::MAX, 0.0f64), |(lo, hi), r| (lo.min(*r), hi.max(*r)));
    Some(format!("{middle:.2} ({min:.2}..{max:.2})"))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    let (low, high) = (all.get(all.len().saturating_sub(1) / 2)?, all.get(all.len() / 2)?);
    Some((low + high) / 2.0)
}

fn number(v: f64) -> String {
    match v {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// First column to the left, the others to the right.
fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| lines.iter().filter_map(|l| l.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cell = |(c, s): (usize, &String)| match c {
            0 => format!("{s:<w$}", w = widths[0]),
            _ => format!("{s:>w$}", w = widths[c]),
        };
        let cells: Vec<String> = line.iter().enumerate().map(cell).collect();
        out += cells.join("  ").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(v: f64) -> Option<Sample> {
        Some(Sample { values: vec![v], cpu: Usage::default(), wall: Duration::from_secs(1) })
    }

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
        let kernel = [sample(10.0), None, sample(20.0)];
        let engine = [sample(20.0), sample(7.0), sample(10.0)];
        assert_eq!(ratio(&kernel, &engine, 0).unwrap(), "1.25 (0.50..2.00)");
        assert_eq!(ratio(&kernel[1..2], &engine[1..2], 0), None);
    }

    #[test]
    fn columns_line_up() {
        let lines = [vec!["a".into(), "1.00".into()], vec!["long".into(), "9".into()]];
        assert_eq!(align(&lines), "a     1.00\nlong     9\n");
    }
}
