//! The pure functions of the hot path: header parsing and writing, checksums, against a plain copy.
//! `cargo bench --bench functions`.

#![allow(missing_docs)] // the macros at the end make public items

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use toe_core::SeqNr;
use toe_core::flow::FlowKey;
use toe_core::wire::{TcpFields, TcpOptions, Timestamps, checksum, emit, flags, parse, verify_checksum};

const MSS: usize = 1448;

fn fields(v6: bool) -> TcpFields {
    let ip = |last: u8| match v6 {
        true => IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last.into())),
        false => IpAddr::V4(Ipv4Addr::new(127, 77, 0, last)),
    };
    let key = FlowKey { local_ip: ip(1), remote_ip: ip(2), local_port: 40_000, remote_port: 80 };
    let options = TcpOptions { timestamps: Some(Timestamps { val: 1, ecr: 2 }), ..TcpOptions::default() };
    TcpFields {
        key,
        seq: SeqNr(1),
        ack: SeqNr(2),
        flags: flags::ACK | flags::PSH,
        window: 512,
        urgent: 0,
        options,
        ttl: 64,
        tos: 0,
        ident: 7,
    }
}

fn frame(v6: bool, payload: &[u8]) -> Vec<u8> {
    let l2 = ethernet(v6);
    let mut frame = emit(&l2, &fields(v6), &[payload], false).as_slice().to_vec();
    frame.extend(payload);
    frame
}

fn ethernet(v6: bool) -> [u8; 14] {
    let mut l2 = [2; 14];
    let kind = if v6 { toe_core::wire::ETHERTYPE_IPV6 } else { toe_core::wire::ETHERTYPE_IPV4 };
    l2[12..].copy_from_slice(&kind.to_be_bytes());
    l2
}

fn headers(c: &mut Criterion) {
    let payload = vec![0x5a; MSS];
    let mut group = c.benchmark_group("headers");
    for (name, v6) in [("IPv4", false), ("IPv6", true)] {
        let frame = frame(v6, &payload);
        let segment = parse(&frame).expect("a good frame");
        assert!(verify_checksum(&frame, &segment));
        group.bench_function(format!("parse, {name}"), |b| b.iter(|| parse(black_box(&frame))));
        let (l2, f) = (ethernet(v6), fields(v6));
        group.bench_function(format!("emit, {name}, offload"), |b| {
            b.iter(|| emit(black_box(&l2), black_box(&f), &[&payload], true));
        });
        group.bench_function(format!("verify checksum of {MSS} B, {name}"), |b| {
            b.iter(|| verify_checksum(black_box(&frame), &segment));
        });
    }
    group.finish();
}

fn bytes(c: &mut Criterion) {
    for len in [64, MSS, 16 << 10, 64 << 10] {
        let mut group = c.benchmark_group(format!("{len} B"));
        group.throughput(Throughput::Bytes(len as u64));
        let from = vec![0x5a; len];
        let mut to = vec![0; len];
        group.bench_function("checksum", |b| b.iter(|| checksum::add(0, black_box(&from))));
        group.bench_function("copy", |b| b.iter(|| black_box(&mut to[..]).copy_from_slice(black_box(&from))));
        group.finish();
    }
}

criterion_group!(benches, headers, bytes);
criterion_main!(benches);
