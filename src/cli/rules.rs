//! `toe rules check`: what would happen to a connection, and why.

use crate::config::{Config, ConfigArgs, Machine};
use crate::rules::{self, Rule};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use toe_core::app::rules::{Action, Role};

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
    println!("{}", explain(&table, args.role, SocketAddr::new(args.addr, args.port)));
    ExitCode::SUCCESS
}

fn explain(table: &[Rule], role: RoleArg, addr: SocketAddr) -> String {
    let role = match role {
        RoleArg::Connect => Role::Connect,
        RoleArg::Listen => Role::Listen,
    };
    if role == Role::Listen && addr.ip().is_unspecified() {
        let both = table.iter().any(|r| r.listens_on(addr));
        let who = if both { "offload engine and kernel" } else { "kernel" };
        return format!(
            "listen {addr}: {who} (a wildcard listener serves every address that rules give to the engine)"
        );
    }
    let verb = if role == Role::Connect { "connect" } else { "listen" };
    match rules::decide(table, role, addr) {
        None => format!("{verb} {addr}: kernel (no rule matches)"),
        Some(rule) => {
            let what = match rule.action() {
                Action::Engine => "offload engine",
                Action::Kernel => "kernel",
                Action::Refuse => "refused with ENETUNREACH",
            };
            format!("{verb} {addr}: {what} ({})", rule.origin)
        }
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
        let says = |role, addr: &str| explain(&table, role, addr.parse().unwrap());
        assert!(says(RoleArg::Connect, "127.77.0.1:80").ends_with("kernel (rule 1 of the configuration)"));
        assert!(says(RoleArg::Connect, "127.77.0.9:81").ends_with("offload engine (network of link a)"));
        assert!(says(RoleArg::Connect, "10.1.1.1:81").contains("ENETUNREACH (rule 2"));
        assert!(says(RoleArg::Connect, "8.8.8.8:81").ends_with("kernel (no rule matches)"));
        assert!(says(RoleArg::Listen, "0.0.0.0:81").contains("engine and kernel"));
        assert!(says(RoleArg::Listen, "[::]:81").contains(": kernel"));
    }
}
