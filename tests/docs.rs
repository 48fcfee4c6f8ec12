//! What the documents tell people to type is run by a test: this file knows by which, and complains of the rest.

use std::path::Path;

/// A command of the documents, and the file with the words that run it (options of one command may stand apart).
const COVERED: [(&str, &str, &[&str]); 13] = [
    ("cargo run --release -- compare", "tests/e2e/commands.rs", &["compare --quick"]),
    ("tests/run.sh", ".ci/run", &["exec tests/run.sh"]),
    ("cargo build --release --workspace", "tests/run.sh", &["cargo build --workspace --release"]),
    (
        "target/release/toe run -- python3 -m http.server 8000 --bind 127.77.0.1",
        "tests/e2e/commands.rs",
        &["run --", "-m http.server", "--bind 127.77.0.1"],
    ),
    ("target/release/toe run -- curl -sS http://127.77.0.1:8000/", "tests/e2e/commands.rs", &["run --", "-sS", "curl"]),
    ("target/release/toe status", "tests/e2e/commands.rs", &["toe(\"status\")"]),
    ("toed --pcielink /tmp/link --addr 127.77.0.1/24 --socket /tmp/a.sock", "src/compare/stack.rs", &PCIELINK),
    ("toed --pcielink /tmp/link --addr 127.77.0.2/24 --socket /tmp/b.sock", "src/compare/stack.rs", &PCIELINK),
    (
        "toe run --toed /tmp/b.sock -- redis-server --bind 127.77.0.2 --protected-mode no",
        "tests/e2e/programs.rs",
        &["redis-server", "--bind", "--protected-mode no"],
    ),
    (
        "toe run --toed /tmp/a.sock -- redis-benchmark -h 127.77.0.2 -t get,set",
        "tests/e2e/programs.rs",
        &["redis-benchmark", "-t set,get"],
    ),
    ("toed --config tap.toml", "tests/common/rig.rs", &["--config", "kind = \\\"tap\\\""]),
    ("cargo bench --bench functions", "tests/run.sh", &["cargo clippy --workspace --all-targets"]),
    ("cargo bench --bench link", "src/compare/mod.rs", &["link::rate"]),
];
const PCIELINK: [&str; 3] = ["--pcielink", "--addr", "--socket"];

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn documents() -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let names = std::fs::read_dir(docs).expect("docs").flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let pages = names.filter(|n| n.ends_with(".md")).map(|n| format!("docs/{n}"));
    pages.chain(["README.md".to_string()]).collect()
}

/// The fenced blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let (mut found, mut current) = (vec![], None::<String>);
    for line in text.lines() {
        match (&mut current, line.trim_start().strip_prefix("```")) {
            (None, Some(l)) if l.trim() == language => current = Some(String::new()),
            (None, Some(_)) => current = Some(String::from("\0")),
            (Some(_), Some(_)) => found.extend(current.take().filter(|b| !b.starts_with('\0'))),
            (Some(block), None) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

#[test]
fn commands_are_run_by_a_test() {
    let mut seen = vec![];
    for page in documents() {
        for block in blocks(&read(&page), "console") {
            for command in block.lines().filter_map(|l| l.strip_prefix("$ ")) {
                let known = COVERED.iter().find(|c| c.0 == command);
                let (_, file, words) = known.unwrap_or_else(|| panic!("{page}: `{command}` is run by no test"));
                let text = read(file);
                let missing: Vec<_> = words.iter().filter(|w| !text.contains(**w)).collect();
                assert!(missing.is_empty(), "{page}: `{command}`: {file} has no {missing:?}");
                seen.push(command.to_string());
            }
        }
    }
    let unused: Vec<_> = COVERED.iter().filter(|c| !seen.contains(&c.0.to_string())).collect();
    assert!(unused.is_empty(), "not in any document: {unused:?}");
}

#[test]
fn shell_blocks_are_marked() {
    for page in documents() {
        for language in ["sh", "bash", "shell"] {
            assert!(blocks(&read(&page), language).is_empty(), "{page}: use console for commands");
        }
    }
}

#[test]
fn examples_are_toml() {
    let mut count = 0;
    for page in documents() {
        for block in blocks(&read(&page), "toml") {
            block.parse::<toml::Table>().unwrap_or_else(|e| panic!("{page}: {e}\n{block}"));
            count += 1;
        }
    }
    assert!(count > 0);
}

#[test]
fn blocks_are_found() {
    let text = "a\n```console\n$ x\n```\n```text\n$ y\n```\n```console\n$ z\n```\n";
    assert_eq!(blocks(text, "console"), ["$ x\n", "$ z\n"]);
}
