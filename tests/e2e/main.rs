//! Acceptance: unmodified programs over the engine, on PCIeLINK between two daemons and on TAP against the kernel's TCP.
//! Each test names itself when it is skipped (no namespaces, or a program is missing outside CI).

#[path = "../common/mod.rs"]
mod common;

mod bulk;
mod calls;
mod capture;
mod commands;
mod failure;
mod idle;
mod inherit;
mod loopback;
mod programs;
mod python;
mod web;

use common::{Moved, Rig, RigSpec, Side};

/// Which end serves over which link.
#[derive(Clone, Copy, Debug)]
enum Pairing {
    /// Two engines.
    PcieLink,
    /// The engine serves, the kernel's TCP is the client.
    TapServer,
    /// The kernel's TCP serves, the engine is the client.
    TapClient,
}

/// Builds the rig, hands out (rig, server, client), and checks that the engines carried what `body` says was moved.
fn on(pairing: Pairing, test: &str, spec: &RigSpec, body: impl FnOnce(&Rig, &Side, &Side) -> Moved) {
    on_doomed(pairing, test, spec, |rig, server, client| {
        let moved = body(rig, server, client);
        rig.prove(server, client, moved);
    });
}

/// The same for tests that end a daemon: they call [`Rig::prove`] before.
fn on_doomed(pairing: Pairing, test: &str, spec: &RigSpec, body: impl FnOnce(&Rig, &Side, &Side)) {
    let rig = match pairing {
        Pairing::PcieLink => Rig::pcielink(test, spec),
        _ => Rig::tap(test, spec),
    };
    let Some(rig) = rig else { return };
    let (server, client) = match pairing {
        Pairing::TapServer => rig.a_serves(),
        _ => rig.b_serves(),
    };
    body(&rig, server, client);
}

/// Three tests of one function `fn(Pairing, &str)`: over each pairing.
macro_rules! on_each_pairing {
    ($($body:ident),* $(,)?) => { $(
        mod $body {
            use crate::Pairing;
            #[test]
            fn pcielink() {
                super::$body(Pairing::PcieLink, concat!(module_path!(), "::pcielink"));
            }
            #[test]
            fn tap_server() {
                super::$body(Pairing::TapServer, concat!(module_path!(), "::tap_server"));
            }
            #[test]
            fn tap_client() {
                super::$body(Pairing::TapClient, concat!(module_path!(), "::tap_client"));
            }
        }
    )* };
}
pub(crate) use on_each_pairing;
