//! `toe rules check`: what would happen to a connection, and why.

use crate::config::{Config, ConfigArgs, Machine};
use crate::rules::{self, Rule};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use toe_core::app::rules::{Action, Role, to_self};

/// What the command line says.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Address to connect to, or to listen on
    pub addr: IpAddr,
    /// Port
    pub port: u16,
    /// Base name of the program
    #[arg(long, default_value = "")]
    pub program: String,
    /// User id of the program [default: yours]
    #[arg(long)]
    pub uid: Option<u32>,
    /// What it does
    #[arg(long, value_enum, default_value = "connect")]
    pub role: RoleArg,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub config: ConfigArgs,
}

/// See [`Args::role`].
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum RoleArg {
    Connect,
    Listen,
}

/// Prints the answer.
pub fn check(args: &Args) -> ExitCode {
    let config = match Config::load(&args.config, &Machine::here()) {
        Ok(config) => config,
        Err(e) => {
            eprintln!("toe rules: {e}");
            return ExitCode::FAILURE;
        }
    };
    let uid = args.uid.unwrap_or_else(|| rustix::process::getuid().as_raw());
    let table = rules::compile(&config, &args.program, uid);
    println!("{}", explain(&config, &table, args.role, SocketAddr::new(args.addr, args.port)));
    ExitCode::SUCCESS
}

fn explain(config: &Config, table: &[Rule], role: RoleArg, addr: SocketAddr) -> String {
    let (role, verb) = match role {
        RoleArg::Connect => (Role::Connect, "connect"),
        RoleArg::Listen => (Role::Listen, "listen"),
    };
    // connect(2) to the wildcard address means this host.
    let (action, rule) = match role {
        Role::Listen if addr.ip().is_unspecified() => return explain_wildcard(table, addr),
        Role::Listen => rules::decide(config, table, role, addr),
        Role::Connect => rules::decide(config, table, role, to_self(addr)),
    };
    let what = match (action, role) {
        (Action::Engine, _) => "offload engine",
        (Action::Kernel, _) => "kernel",
        (Action::Refuse, _) => "refused with ENETUNREACH",
        (Action::Shared, Role::Connect) => "offload engine if a program on it listens there, else kernel",
        (Action::Shared, Role::Listen) => "offload engine and kernel",
    };
    match rule {
        None => format!("{verb} {addr}: {what} (no rule matches)"),
        Some(rule) => format!("{verb} {addr}: {what} ({})", rule.origin),
    }
}

/// A wildcard listener serves every address that rules give to the engine.
fn explain_wildcard(table: &[Rule], addr: SocketAddr) -> String {
    let mut origins: Vec<String> =
        rules::decide_wildcard(table, addr).into_iter().map(|r| r.origin.to_string()).collect();
    origins.dedup();
    match origins.is_empty() {
        true => format!("listen {addr}: kernel (no rule gives the engine an address for it)"),
        false => format!("listen {addr}: offload engine and kernel ({})", origins.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_name_the_rule() {
        let text = "[[nic]]\nname = 'a'\nkind = 'local'\naddr = ['127.77.0.1/24']\n\
                    [[rule]]\nport = 80\nstack = 'kernel'\n[[rule]]\ncidr = '10.0.0.0/8'\nstack = 'refuse'";
        let config = Config::parse(text, "t", &Machine { cpus: vec![0] }).unwrap();
        let table = rules::compile(&config, "x", 0);
        let says = |role, addr: &str| explain(&config, &table, role, addr.parse().unwrap());
        assert!(says(RoleArg::Connect, "127.77.0.1:80").ends_with("kernel (rule 1 of the configuration)"));
        assert!(says(RoleArg::Connect, "127.77.0.9:81").ends_with("offload engine (network of link a)"));
        assert!(says(RoleArg::Connect, "10.1.1.1:81").contains("ENETUNREACH (rule 2"));
        assert!(says(RoleArg::Connect, "8.8.8.8:81").ends_with("kernel (no rule matches)"));
        assert_eq!(
            says(RoleArg::Listen, "0.0.0.0:81"),
            "listen 0.0.0.0:81: offload engine and kernel (loopback, network of link a)"
        );
        assert!(says(RoleArg::Listen, "0.0.0.0:80").contains(": kernel"));
        for addr in ["127.0.0.1:81", "[::1]:81", "0.0.0.0:81", "[::]:81", "[::ffff:127.0.0.1]:81"] {
            let wanted = "offload engine if a program on it listens there, else kernel (loopback)";
            assert_eq!(says(RoleArg::Connect, addr), format!("connect {addr}: {wanted}"));
        }
        assert_eq!(says(RoleArg::Listen, "127.0.0.1:81"), "listen 127.0.0.1:81: offload engine and kernel (loopback)");
    }
}
