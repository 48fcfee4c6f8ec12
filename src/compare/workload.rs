//! What is measured, with which program, and how its output is read. None of these programs knows of the engine.

use super::child::Words;
use super::place::{Places, WorkDir};
use std::path::Path;
use std::time::Duration;

/// What a pair of programs is told.
pub struct Context<'a> {
    /// The server's address.
    pub ip: String,
    /// A port of its own.
    pub port: u16,
    /// How long to measure, for programs that take a time.
    pub span: Duration,
    /// Ask for CUBIC: the kernel's default may be another.
    pub cubic: bool,
    /// Programs.
    pub places: &'a Places,
    /// Files.
    pub dir: &'a WorkDir,
}

impl Context<'_> {
    /// Address and port.
    pub fn addr(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }

    /// `toe-peer` with arguments.
    pub fn peer(&self, args: &str) -> Words {
        Words::new(&self.places.peer).args(args)
    }

    fn program(&self, name: &str) -> Words {
        Words::new(self.places.get(name).unwrap_or(Path::new(name)))
    }

    /// Whole seconds, at least one, for programs that take no less.
    fn seconds(&self) -> u64 {
        self.span.as_millis().div_ceil(1000).max(1) as u64
    }

    /// `rate` a second over the whole span.
    fn count(&self, rate: f64) -> u64 {
        (rate * self.span.as_secs_f64()) as u64
    }
}

/// How to know that a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It says so.
    Says(&'static str),
    /// It accepts a connection and does not mind one that says nothing.
    Accepts,
    /// It takes one connection: the client tries.
    Retry,
}

/// One figure of a workload.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Metric {
    /// What.
    pub name: &'static str,
    /// In what.
    pub unit: &'static str,
    /// Less is better.
    pub lower: bool,
}

/// One pair of programs.
pub struct Workload {
    /// For the table.
    pub name: &'static str,
    /// What `parse` yields.
    pub metrics: &'static [Metric],
    /// How to wait for the server.
    pub ready: Ready,
    /// Starts the server.
    pub server: fn(&Context) -> Words,
    /// Starts the client.
    pub client: fn(&Context) -> Words,
    /// Reads the client's output.
    pub parse: fn(&str) -> Option<Vec<f64>>,
    needs: &'static [&'static str],
}

const RTT: &[Metric] =
    &[Metric { name: "p50", unit: "us", lower: true }, Metric { name: "p99", unit: "us", lower: true }];
const RATE: &[Metric] = &[Metric { name: "rate", unit: "Gb/s", lower: false }];
const PER_SECOND: &[Metric] = &[Metric { name: "rate", unit: "k/s", lower: false }];

/// Those whose programs are installed.
pub fn all(places: &Places) -> Vec<Workload> {
    let listed = bundled().into_iter().chain(latency_and_throughput()).chain(servers());
    listed.filter(|w| w.needs.iter().all(|n| places.get(n).is_some())).collect()
}

fn peer_server(c: &Context) -> Words {
    c.peer(&format!("serve --listen {} {}", c.addr(), if c.cubic { "--cubic" } else { "" }))
}

/// `toe-peer`: every byte is compared, so these are also the proof that the bytes are right.
fn bundled() -> [Workload; 4] {
    let base = |name, metrics, client, parse| Workload {
        name,
        metrics,
        ready: Ready::Says("listening"),
        server: peer_server,
        client,
        parse,
        needs: &[],
    };
    [
        base("round trip 64 B", RTT, |c| peer_client(c, "ping --msg 64"), ping_figures),
        base("round trip 16 KiB", RTT, |c| peer_client(c, "ping --msg 16384"), ping_figures),
        base("stream, 1 flow", RATE, |c| peer_client(c, "stream --data pattern"), stream_figures),
        base("stream, 8 flows", RATE, |c| peer_client(c, "stream --data pattern --connections 8"), stream_figures),
    ]
}

fn peer_client(c: &Context, args: &str) -> Words {
    let cubic = if c.cubic { "--cubic" } else { "" };
    c.peer(&format!("{args} --connect {} --seconds {} {cubic}", c.addr(), c.span.as_secs_f64()))
}

fn latency_and_throughput() -> [Workload; 4] {
    [
        Workload {
            name: "sockperf 64 B",
            metrics: RTT,
            ready: Ready::Accepts,
            server: |c| c.program("sockperf").args(&format!("server -i {} -p {} --tcp", c.ip, c.port)),
            client: |c| {
                let to = format!("-i {} -p {} --tcp -m 64 -t {} --full-rtt", c.ip, c.port, c.seconds());
                c.program("sockperf").arg("ping-pong").args(&to)
            },
            parse: sockperf_figures,
            needs: &["sockperf"],
        },
        Workload { client: |c| iperf_client(c, ""), ..iperf("iperf3, 1 flow") },
        Workload { client: |c| iperf_client(c, "-P 8"), ..iperf("iperf3, 8 flows") },
        Workload {
            name: "NetPIPE, peak",
            metrics: RATE,
            ready: Ready::Retry,
            server: |c| netpipe(c, ""),
            client: |c| netpipe(c, &format!("-h {}", c.ip)),
            parse: netpipe_figures,
            needs: &["NPtcp"],
        },
    ]
}

fn iperf(name: &'static str) -> Workload {
    Workload {
        name,
        metrics: RATE,
        ready: Ready::Says("Server listening"),
        server: |c| c.program("iperf3").args(&format!("--forceflush -s -B {} -p {}", c.ip, c.port)),
        client: |c| iperf_client(c, ""),
        parse: iperf_figures,
        needs: &["iperf3"],
    }
}

fn iperf_client(c: &Context, args: &str) -> Words {
    let cubic = if c.cubic { "-C cubic" } else { "" };
    let to = format!("-c {} -p {} -J -t {} {cubic} {args}", c.ip, c.port, c.seconds());
    c.program("iperf3").args(&to)
}

/// From 64 KiB to 4 MiB: the sizes at which its curve peaks.
fn netpipe(c: &Context, args: &str) -> Words {
    let out = c.dir.file("netpipe");
    let sizes = format!("-P {} -l 65536 -u 4194304 -p 0 -n {}", c.port, c.count(30.0).max(10));
    c.program("NPtcp").args(&sizes).arg("-o").arg(out.display()).args(args)
}

fn servers() -> [Workload; 5] {
    [
        Workload { client: |c| redis_client(c, 1, 1, 6_000.0), ..redis("redis GET, 1 client") },
        Workload { client: |c| redis_client(c, 50, 1, 40_000.0), ..redis("redis GET, 50 clients") },
        Workload { client: |c| redis_client(c, 50, 16, 300_000.0), ..redis("redis GET, 50, pipeline 16") },
        Workload { client: |c| wrk(c, "keep-alive"), ..nginx("nginx 1 KiB, keep-alive") },
        Workload { client: |c| wrk(c, "close"), ..nginx("nginx 1 KiB, close") },
    ]
}

fn redis(name: &'static str) -> Workload {
    Workload {
        name,
        metrics: PER_SECOND,
        ready: Ready::Says("Ready to accept connections"),
        server: |c| {
            let to = format!("--bind {} --port {} --protected-mode no --appendonly no --save", c.ip, c.port);
            c.program("redis-server").args(&to).arg("")
        },
        client: |c| redis_client(c, 1, 1, 6_000.0),
        parse: redis_figures,
        needs: &["redis-server", "redis-benchmark"],
    }
}

fn redis_client(c: &Context, clients: u32, pipeline: u32, rate: f64) -> Words {
    let to = format!("-h {} -p {} --csv -t get -c {clients} -P {pipeline} -n {}", c.ip, c.port, c.count(rate));
    c.program("redis-benchmark").args(&to)
}

fn nginx(name: &'static str) -> Workload {
    Workload {
        name,
        metrics: PER_SECOND,
        ready: Ready::Accepts,
        server: nginx_server,
        client: |c| wrk(c, "keep-alive"),
        parse: wrk_figures,
        needs: &["nginx", "wrk"],
    }
}

fn nginx_server(c: &Context) -> Words {
    let dir = c.dir.path().display();
    let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|t| format!("{t}_temp_path {dir}/{t}; "));
    let text = format!(
        "daemon off; master_process off; pid {dir}/nginx.pid; error_log stderr; events {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; keepalive_requests 10000000; {}\n\
         server {{ listen {}; root {dir}; }} }}\n",
        temp.concat(),
        c.addr()
    );
    let file = c.dir.file("nginx.conf");
    // If it cannot be written, nginx says so.
    let _ = std::fs::write(&file, text);
    let _ = std::fs::write(c.dir.path().join("1k"), [b'x'; 1024]);
    c.program("nginx").args("-e stderr -p").arg(dir).arg("-c").arg(file.display())
}

fn wrk(c: &Context, connection: &str) -> Words {
    let run = c.program("wrk").args(&format!("-t 1 -c 16 -d {}", c.seconds())).arg("-H");
    run.arg(format!("Connection: {connection}")).arg(format!("http://{}/1k", c.addr()))
}

fn json_line(text: &str) -> Option<serde_json::Value> {
    serde_json::from_str(text.lines().rfind(|l| l.starts_with('{'))?).ok()
}

fn ping_figures(text: &str) -> Option<Vec<f64>> {
    let json = json_line(text).filter(|j| j["verified"] == true)?;
    Some(vec![json["p50_us"].as_f64()?, json["p99_us"].as_f64()?])
}

fn stream_figures(text: &str) -> Option<Vec<f64>> {
    let json = json_line(text).filter(|j| j["verified"] == true)?;
    Some(vec![json["mbit_s"].as_f64()? / 1e3])
}

fn sockperf_figures(text: &str) -> Option<Vec<f64>> {
    let percentile = |p: &str| {
        let line = text.lines().find(|l| l.contains(&format!("percentile {p} =")))?;
        line.rsplit('=').next()?.trim().parse().ok()
    };
    Some(vec![percentile("50.000")?, percentile("99.000")?])
}

fn iperf_figures(text: &str) -> Option<Vec<f64>> {
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    Some(vec![json["end"]["sum_received"]["bits_per_second"].as_f64()? / 1e9])
}

fn netpipe_figures(text: &str) -> Option<Vec<f64>> {
    let rates = text.lines().filter_map(|l| l.split_once("-->")?.1.split_once("Mbps")?.0.trim().parse::<f64>().ok());
    let peak = rates.fold(0.0, f64::max);
    (peak > 0.0).then(|| vec![peak / 1e3])
}

fn redis_figures(text: &str) -> Option<Vec<f64>> {
    let line = text.lines().find(|l| l.starts_with("\"GET\""))?;
    let rate: f64 = line.split('"').nth(3)?.parse().ok()?;
    (rate > 0.0).then(|| vec![rate / 1e3])
}

fn wrk_figures(text: &str) -> Option<Vec<f64>> {
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        return None;
    }
    let rate: f64 = text.lines().find_map(|l| l.strip_prefix("Requests/sec:"))?.trim().parse().ok()?;
    (rate > 0.0).then(|| vec![rate / 1e3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read() {
        assert_eq!(ping_figures("listening\n{\"p50_us\":1.5,\"p99_us\":2,\"verified\":true}\n"), Some(vec![1.5, 2.0]));
        assert_eq!(ping_figures("{\"p50_us\":1.5,\"p99_us\":2,\"verified\":false}"), None);
        assert_eq!(stream_figures("{\"mbit_s\":2500,\"verified\":true}"), Some(vec![2.5]));
        let sockperf = "sockperf: ---> percentile 99.000 =   14.058\nsockperf: ---> percentile 50.000 =    6.332\n";
        assert_eq!(sockperf_figures(sockperf), Some(vec![6.332, 14.058]));
        let netpipe =
            "  0: 65536 bytes 20 times -->  54050.31 Mbps in 9 usec\n  1: 98304 bytes 20 times -->  67869 Mbps in 1";
        assert_eq!(netpipe_figures(netpipe), Some(vec![67.869]));
        assert_eq!(redis_figures("\"test\",\"rps\"\n\"GET\",\"18000.5\",\"0.1\"\n"), Some(vec![18.0005]));
        assert_eq!(wrk_figures("Requests/sec:  63000.0\n"), Some(vec![63.0]));
        assert_eq!(wrk_figures("Requests/sec:  63000.0\n  Socket errors: connect 1\n"), None);
        assert_eq!(iperf_figures("{\"end\":{\"sum_received\":{\"bits_per_second\":2e9}}}"), Some(vec![2.0]));
    }
}
