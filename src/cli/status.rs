//! `toe status`: tables in the manner of `ss` and `ip -s`. Read from JSON, so that a tool of another version still shows
//! what it knows.

use super::client;
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use toe_core::app::Why;

/// What the command line says.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Only why sockets are the kernel's instead of the engine's
    #[arg(long)]
    pub why: bool,
    /// Control socket of the daemon [default: TOE_SOCKET, else the first usual place where one answers]
    #[arg(long, value_name = "SOCKET")]
    pub toed: Option<PathBuf>,
}

/// Asks and prints.
pub fn run(args: &Args) -> ExitCode {
    let answer = client::socket(args.toed.as_deref())
        .and_then(|path| client::status(&path).map_err(|e| std::io::Error::other(format!("{}: {e}", path.display()))));
    match answer {
        Ok(status) if args.json && args.why => println!("{}", why_json(&status)),
        Ok(status) if args.json => println!("{status}"),
        Ok(status) if args.why => print!("{}", why(&status)),
        Ok(status) => print!("{}", text(&status)),
        Err(e) => {
            eprintln!("toe status: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The whole, for people.
fn text(s: &Value) -> String {
    let mut out = String::new();
    daemon(&mut out, &s["daemon"]);
    nics(&mut out, s);
    listeners(&mut out, &s["listeners"]);
    flows(&mut out, &s["flows"]);
    counters(&mut out, s);
    out
}

fn daemon(out: &mut String, d: &Value) {
    let _ =
        writeln!(out, "toed {} pid {} up {} s on {}", t(d, "version"), n(d, "pid"), n(d, "uptime_s"), t(d, "socket"));
    for thread in list(&d["threads"]) {
        let _ = writeln!(out, "  {}", thread.as_str().unwrap_or_default());
    }
}

fn nics(out: &mut String, s: &Value) {
    let _ = writeln!(out, "\nLinks");
    for (i, nic) in list(&s["nics"]).iter().enumerate() {
        let addrs: Vec<&str> = list(&nic["addrs"]).iter().filter_map(Value::as_str).collect();
        let state = if nic["up"] == true { "UP" } else { "DOWN" };
        let _ = writeln!(out, "{}: {} mtu {} state {state} {}", i, t(nic, "name"), n(nic, "mtu"), addrs.join(" "));
        let stats = nic_stats(s, i);
        for (way, rest) in [("rx", ["errors", "dropped"].as_slice()), ("tx", &["dropped"])] {
            let more: String = rest.iter().map(|k| format!("  {k} {}", sum(&stats, &format!("{way}_{k}")))).collect();
            let (bytes, packets) = (sum(&stats, &format!("{way}_bytes")), sum(&stats, &format!("{way}_packets")));
            let _ = writeln!(out, "    {}: bytes {bytes}  packets {packets}{more}", way.to_uppercase());
        }
    }
}

/// The counters of link `i`, from every core's report.
fn nic_stats(s: &Value, i: usize) -> Vec<&Value> {
    let pairs = list(&s["cores"]).iter().flat_map(|core| list(&core["nics"]));
    pairs.filter(|pair| pair[0] == i).map(|pair| &pair[1]).collect()
}

fn listeners(out: &mut String, all: &Value) {
    let mut table = Table::new(&["Recv-Q", "Send-Q", "Local Address:Port", "Process"]);
    for l in list(all) {
        // As `ss` has it for listeners: waiting connections, and the backlog.
        let waiting = l["waiting"].as_u64().unwrap_or(n(l, "queued"));
        table.row(&[waiting.to_string(), n(l, "backlog").to_string(), t(l, "local").into(), process(l)]);
    }
    table.print(out, "Listeners");
}

fn flows(out: &mut String, all: &Value) {
    let mut table = Table::new(&[
        "State",
        "Path",
        "Link",
        "Core",
        "Recv-Q",
        "Send-Q",
        "Local Address:Port",
        "Peer Address:Port",
        "Acked",
        "Received",
        "Cwnd",
        "RTT",
        "Retrans",
        "Process",
    ]);
    for f in list(all) {
        let either = |a: &str, b: &str| f[a].as_u64().unwrap_or(n(f, b)).to_string();
        let rtt = f["srtt_us"].as_u64().unwrap_or(n(f, "rtt_us"));
        table.row(&[
            t(f, "state").into(),
            t(f, "path").into(),
            t(f, "nic").into(),
            f["core"].as_u64().map_or("-".into(), |c| c.to_string()),
            either("receive_queue", "recv_q"),
            either("send_queue", "send_q"),
            t(f, "local").into(),
            t(f, "remote").into(),
            n(f, "bytes_acked").to_string(),
            n(f, "bytes_received").to_string(),
            n(f, "cwnd").to_string(),
            format!("{rtt} us"),
            n(f, "retransmits").to_string(),
            process(f),
        ]);
    }
    table.print(out, "Connections");
}

/// Counters that are not zero, the cores' added up, as `nstat` does.
fn counters(out: &mut String, s: &Value) {
    let _ = writeln!(out, "\nCounters");
    let _ = writeln!(out, "  half open {}, TIME-WAIT {}", n(s, "half_open"), n(s, "time_wait"));
    let mut all = std::collections::BTreeMap::<&str, u64>::new();
    for from in [&s["counters"], &s["daemon"]["control"]].into_iter().chain(list(&s["cores"])) {
        for (name, value) in from.as_object().into_iter().flatten() {
            *all.entry(name).or_default() += value.as_u64().unwrap_or(0);
        }
    }
    for (name, value) in all.into_iter().filter(|(_, v)| *v != 0) {
        let _ = writeln!(out, "  {name:<24} {value:>16}");
    }
}

/// Reasons with their counts: in total, then by program.
fn why(s: &Value) -> String {
    let mut out = String::from("Sockets that are the kernel's, by reason\n");
    let mut total = Table::new(&["Count", "Reason"]);
    reasons(&s["why"]).for_each(|(text, n)| total.row(&[n.to_string(), text]));
    total.print(&mut out, "All programs, ended ones included");
    let mut each = Table::new(&["Process", "Count", "Reason"]);
    for r in list(&s["regions"]) {
        let last = n(r, "why_errno");
        for (mut text, count) in reasons(&r["why"]) {
            if last != 0 && text == Why::Engine.text() {
                let _ = write!(text, " (last: {})", std::io::Error::from_raw_os_error(last as i32));
            }
            each.row(&[process(&r["owner"]), count.to_string(), text]);
        }
    }
    each.print(&mut out, "Programs now registered");
    out.push_str(
        "\nA program without a daemon cannot tell: absent, full and other versions are told when it registers later.\n",
    );
    out
}

/// Names and counts. A reason that this tool does not know has its key for a name.
fn reasons(counts: &Value) -> impl Iterator<Item = (String, u64)> + '_ {
    let text = |key: &str| Why::ALL.iter().find(|w| w.key() == key).map_or(key.to_owned(), |w| w.text().to_owned());
    counts.as_object().into_iter().flatten().map(move |(key, n)| (text(key), n.as_u64().unwrap_or(0)))
}

/// The same for programs.
fn why_json(s: &Value) -> Value {
    let each = |r: &Value| {
        let (owner, why) = (&r["owner"], &r["why"]);
        serde_json::json!({"pid": owner["pid"], "program": owner["program"], "why": why, "last_errno": r["why_errno"]})
    };
    serde_json::json!({"why": s["why"], "processes": list(&s["regions"]).iter().map(each).collect::<Vec<_>>()})
}

/// Left-aligned columns.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|h| (*h).to_owned()).collect()] }
    }

    fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    fn print(&self, out: &mut String, title: &str) {
        let _ = writeln!(out, "\n{title}");
        let wide = |c: usize| self.rows.iter().map(|r| r[c].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(wide).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:<w$}"));
            let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

fn process(v: &Value) -> String {
    format!("{} pid {}", t(v, "program"), n(v, "pid"))
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn t<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or("?")
}

fn n(v: &Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or(0)
}

fn sum(all: &[&Value], key: &str) -> u64 {
    all.iter().map(|v| n(v, key)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let status = serde_json::json!({
            "daemon": {"version": "1", "pid": 7, "uptime_s": 3, "socket": "/s", "threads": ["core 0"], "control": {"accepted": 2}},
            "nics": [{"name": "a", "addrs": ["10.0.0.1/8"], "up": true, "mtu": 1500}],
            "listeners": [{"local": "10.0.0.1:80", "backlog": 5, "waiting": 1, "pid": 9, "program": "nginx"}],
            "flows": [{"state": "ESTAB", "path": "tcp", "local": "10.0.0.1:80", "remote": "10.0.0.2:9", "bytes_acked": 12,
                       "cwnd": 10, "srtt_us": 33, "program": "nginx", "pid": 9, "core": 0}],
            "cores": [{"polls": 5, "nics": [[0, {"rx_packets": 3, "tx_bytes": 4}]]},
                      {"polls": 6, "nics": [[0, {"rx_packets": 2}]]}],
            "counters": {"passive_opens": 1, "in_errs": 0},
        });
        let text = text(&status);
        for line in [
            "toed 1 pid 7 up 3 s on /s",
            "  core 0",
            "0: a mtu 1500 state UP 10.0.0.1/8",
            "    RX: bytes 0  packets 5  errors 0  dropped 0",
            "    TX: bytes 4  packets 0  dropped 0",
            "1       5       10.0.0.1:80         nginx pid 9",
            "  accepted                                2",
            "  passive_opens                           1",
            "  polls                                  11",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} in:\n{text}");
        }
        assert!(text.contains("33 us") && !text.contains("in_errs"));
    }

    #[test]
    fn reasons_by_program() {
        let status = serde_json::json!({
            "why": {"rule": 3, "no_listener": 12, "newer_than_we": 1},
            "regions": [{"owner": {"pid": 5, "program": "curl"}, "why": {"engine_error": 2}, "why_errno": 98},
                        {"owner": {"pid": 6, "program": "wget"}, "why": {}}],
        });
        let text = why(&status);
        for line in [
            "3      a rule says kernel",
            "12     loopback, and no listener on the engine",
            "1      newer_than_we",
            "curl pid 5  2      the engine answered with an error (last: Address already in use (os error 98))",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} in:\n{text}");
        }
        let json = why_json(&status);
        assert_eq!((&json["why"]["rule"], &json["processes"][0]["last_errno"]), (&3.into(), &98.into()));
        assert_eq!(json["processes"][1]["program"], "wget");
        assert!(why(&Value::Null).contains("cannot tell"));
    }

    #[test]
    fn odd_answers_do_no_harm() {
        assert!(text(&Value::Null).starts_with("toed ?"));
        assert!(text(&serde_json::json!({"nics": 3, "flows": [1, {}], "cores": [[]]})).contains("Connections"));
    }
}
