#!/usr/bin/env bash
# Installs the programs that the tests drive (as root, with apt), builds, and runs every test. Without root it runs all that
# needs none; each test that cannot run says `SKIP name: reason`. The last lines are the test runner's own summary.
#
#   TOE_TEST_BYTES        bytes each way of the large transfers (1 GiB)
#   TOE_TEST_FAULT_BYTES  bytes each way over links with faults (a quarter of the above)
#   TOE_TEST_STACK=kernel the kernel's TCP on both sides: a check of the tests themselves
set -euo pipefail
cd "$(dirname "$0")/.."

# program:package
needs=(
    iperf3:iperf3 redis-server:redis-server redis-benchmark:redis-tools nginx:nginx-light curl:curl wrk:wrk
    memcached:memcached NPtcp:netpipe-tcp sockperf:sockperf python3:python3 tshark:tshark ping:iputils-ping
    ip:iproute2 nsenter:util-linux setpriv:util-linux cc:gcc
)
PATH=$PATH:/usr/sbin:/sbin
packages=()
for need in "${needs[@]}"; do
    command -v "${need%%:*}" >/dev/null || packages+=("${need##*:}")
done
if ((${#packages[@]})); then
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${packages[@]}"
    else
        echo "not installed, and not root to install them: ${packages[*]}"
    fi
fi

cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings

# Engines and parts with debug assertions and overflow checks; whole programs, one after another, optimised.
cargo build --workspace
e2e=(bulk:: calls:: capture:: commands:: failure:: idle:: inherit:: loopback:: programs:: python:: web::)
cargo test --workspace --no-fail-fast -- "${e2e[@]/#/--skip=}"
cargo build --workspace --release
cargo test --release --test e2e --no-fail-fast -- --test-threads=1
