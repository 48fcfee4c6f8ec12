//! The rules of the house, so that nobody has to remember them: sizes, star imports, where `unsafe` may stand, what lies at
//! the top level, links in the documents.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 80;
const MEMBERS: [&str; 5] = ["toe-core", "fastpath", "slowpath", "nic-backend", "sockshim"];
/// All that may lie at the top level.
const TOP: [&str; 15] = [
    ".ci",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "README.md",
    "benches",
    "docs",
    "fastpath",
    "nic-backend",
    "rustfmt.toml",
    "slowpath",
    "sockshim",
    "src",
    "tests",
    "toe-core",
];
/// Words that tell of one machine, of a registry, or of work left over. Split, so that this file does not hold them.
const FORBIDDEN: [&str; 9] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("arti", "factory"),
    concat!("index.crates", ".io"),
    concat!("py", "pi"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("unimpl", "emented!("),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the repository, relative to its root; build output and version control left out.
fn files() -> Vec<PathBuf> {
    let (mut found, mut dirs) = (vec![], vec![root().to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).expect("a readable directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let skipped = name == "target" || name == ".git" || name == "__pycache__";
            match path.is_dir() {
                _ if skipped => {}
                true => dirs.push(path),
                false => found.push(path.strip_prefix(root()).expect("below the root").to_path_buf()),
            }
        }
    }
    found.sort();
    found
}

fn read(file: &Path) -> String {
    let bytes = std::fs::read(root().join(file)).expect("a readable file");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn with_extension(ext: &str) -> Vec<PathBuf> {
    files().into_iter().filter(|f| f.extension().is_some_and(|e| e == ext)).collect()
}

/// The crate directory of a file, relative to the root; the root package's is empty.
fn crate_of(file: &Path) -> &'static str {
    MEMBERS.into_iter().find(|m| file.starts_with(m)).unwrap_or("")
}

fn complain(what: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

#[test]
fn files_are_short() {
    let all = ["rs", "py", "sh"].into_iter().flat_map(with_extension);
    let long = all.map(|f| (read(&f).lines().count(), f)).filter(|(n, _)| *n >= FILE_LINES);
    complain("files of 500 lines or more", long.map(|(n, f)| format!("{}: {n}", f.display())).collect());
}

/// Collects functions with their number of lines, and lines on which `unsafe` begins.
#[derive(Default)]
struct Census {
    functions: Vec<(String, usize)>,
    unsafe_lines: Vec<usize>,
}

impl Census {
    fn function(&mut self, sig: &syn::Signature, whole: proc_macro2::Span) {
        let lines = whole.end().line - sig.span().start().line + 1;
        self.functions.push((sig.ident.to_string(), lines));
    }
}

impl<'a> Visit<'a> for Census {
    fn visit_item_fn(&mut self, f: &'a syn::ItemFn) {
        self.function(&f.sig, f.block.span());
        visit::visit_item_fn(self, f);
    }

    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        self.function(&f.sig, f.block.span());
        visit::visit_impl_item_fn(self, f);
    }

    fn visit_trait_item_fn(&mut self, f: &'a syn::TraitItemFn) {
        if let Some(block) = &f.default {
            self.function(&f.sig, block.span());
        }
        visit::visit_trait_item_fn(self, f);
    }

    fn visit_expr_unsafe(&mut self, e: &'a syn::ExprUnsafe) {
        self.unsafe_lines.push(e.unsafe_token.span.start().line);
        visit::visit_expr_unsafe(self, e);
    }

    fn visit_item_impl(&mut self, i: &'a syn::ItemImpl) {
        self.unsafe_lines.extend(i.unsafety.map(|u| u.span.start().line));
        visit::visit_item_impl(self, i);
    }
}

fn census(file: &Path) -> Census {
    let parsed = syn::parse_file(&read(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut census = Census::default();
    census.visit_file(&parsed);
    census
}

#[test]
fn functions_are_short() {
    let mut long = vec![];
    for file in with_extension("rs") {
        let functions = census(&file).functions.into_iter().filter(|(_, n)| *n >= FUNCTION_LINES);
        long.extend(functions.map(|(name, n)| format!("{}: fn {name}: {n}", file.display())));
    }
    complain("functions of 80 lines or more", long);
}

/// Is the word `unsafe` anywhere in the code, macros and attributes included?
fn mentions_unsafe(tokens: proc_macro2::TokenStream) -> bool {
    tokens.into_iter().any(|t| match t {
        proc_macro2::TokenTree::Group(g) => mentions_unsafe(g.stream()),
        proc_macro2::TokenTree::Ident(i) => i == "unsafe",
        _ => false,
    })
}

/// What the crate's first comment names: files and directories (with `/`), relative to its `src`.
fn named_in_lib(krate: &str) -> Vec<String> {
    let lib = read(&Path::new(krate).join("src/lib.rs"));
    let doc: Vec<&str> = lib.lines().take_while(|l| l.starts_with("//!")).map(|l| &l[3..]).collect();
    let words = doc.join("\n").split('`').skip(1).step_by(2).map(String::from).collect::<Vec<_>>();
    words.into_iter().filter(|w| w.ends_with(".rs") || w.ends_with('/')).collect()
}

#[test]
fn unsafe_stands_in_named_files() {
    let mut wrong = vec![];
    for file in with_extension("rs") {
        let tokens: proc_macro2::TokenStream = read(&file).parse().expect("Rust");
        if !mentions_unsafe(tokens) {
            continue;
        }
        let krate = crate_of(&file);
        let inside = file.strip_prefix(krate).unwrap_or(&file);
        let inside = inside.strip_prefix("src").unwrap_or(inside).to_string_lossy().into_owned();
        let named =
            named_in_lib(krate).iter().any(|n| inside == *n || n.ends_with('/') && inside.starts_with(n.as_str()));
        if !named {
            wrong.push(format!("{}: not named in the first comment of {krate}/src/lib.rs", file.display()));
        }
    }
    complain("unsafe in other files", wrong);
}

#[test]
fn unsafe_has_a_reason() {
    let mut wrong = vec![];
    for file in with_extension("rs") {
        let text = read(&file);
        let lines: Vec<&str> = text.lines().collect();
        for line in census(&file).unsafe_lines {
            // The comment may be long, and the block may stand inside a statement.
            let before = &lines[line.saturating_sub(10)..line];
            if !before.iter().any(|l| l.contains("SAFETY:")) {
                wrong.push(format!("{}:{line}", file.display()));
            }
        }
    }
    complain("unsafe without SAFETY", wrong);
}

#[test]
fn crates_refuse_unsafe() {
    let all = MEMBERS.into_iter().chain([""]).map(|k| Path::new(k).join("src/lib.rs"));
    let refuse = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"];
    let open = all.filter(|lib| !read(lib).lines().any(|l| refuse.contains(&l.trim())));
    complain("crates that do not refuse unsafe", open.map(|l| l.display().to_string()).collect());
}

fn dependencies(krate: &str) -> BTreeSet<String> {
    let toml: toml::Table = read(&Path::new(krate).join("Cargo.toml")).parse().expect("a manifest");
    let tables = ["dependencies", "build-dependencies", "dev-dependencies"];
    let all = tables.iter().filter_map(|t| toml.get(*t)?.as_table());
    all.flat_map(|t| t.keys().cloned()).collect()
}

#[test]
fn imports_are_a_star() {
    let mut wrong = vec![];
    for krate in MEMBERS {
        let siblings = MEMBERS.into_iter().chain(["toe"]).filter(|m| *m != krate && *m != "toe-core");
        let used = dependencies(krate);
        wrong.extend(siblings.filter(|s| used.contains(*s)).map(|s| format!("{krate} imports {s}")));
        if krate != "toe-core" && !used.contains("toe-core") {
            wrong.push(format!("{krate} does not import toe-core"));
        }
    }
    complain("imports beside the star", wrong);
}

#[test]
fn top_level_is_fixed() {
    let tops = files().into_iter().filter_map(|f| f.iter().next().map(|c| c.to_string_lossy().into_owned()));
    let tops: BTreeSet<String> = tops.collect();
    let fixed: BTreeSet<String> = TOP.iter().map(|s| s.to_string()).collect();
    assert_eq!(tops, fixed);
}

#[test]
fn words_are_clean() {
    let mut wrong = vec![];
    for file in files().into_iter().filter(|f| !f.ends_with("Cargo.lock")) {
        for (n, line) in read(&file).lines().enumerate() {
            let hits = FORBIDDEN.iter().filter(|w| line.contains(**w));
            wrong.extend(hits.map(|w| format!("{}:{}: {w:?}", file.display(), n + 1)));
        }
    }
    complain("words that do not belong here", wrong);
}

/// Targets of `[text](target)`, without anchors and other sites.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|t| !t.contains("://") && !t.starts_with('#'));
    local.map(|t| t.split('#').next().unwrap_or(t).to_string()).collect()
}

/// Paths in backquotes that begin with something of the top level and name a file.
fn quoted_paths(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let paths = quoted.filter(|q| q.contains('/') && !q.contains([' ', '*', '{', '\n']));
    let ours = paths.filter(|q| TOP.contains(&q.split('/').next().unwrap_or_default()));
    ours.map(String::from).collect()
}

#[test]
fn documents_point_at_what_exists() {
    let mut wrong = vec![];
    for file in with_extension("md") {
        let text = read(&file);
        let folder = root().join(file.parent().unwrap_or(Path::new("")));
        let broken = links(&text).into_iter().filter(|t| !folder.join(t).exists());
        wrong.extend(broken.map(|t| format!("{}: link to {t}", file.display())));
        let gone = quoted_paths(&text).into_iter().filter(|p| !root().join(p).exists());
        wrong.extend(gone.map(|p| format!("{}: `{p}`", file.display())));
    }
    complain("documents that point at nothing", wrong);
}

#[test]
fn the_census_sees() {
    let text = "trait T { fn d() {\n} }\nfn a() {\n unsafe { b() }\n}\nunsafe impl S for X {}";
    let mut census = Census::default();
    census.visit_file(&syn::parse_file(text).expect("Rust"));
    assert_eq!(census.functions, [("d".into(), 2), ("a".into(), 3)]);
    assert_eq!(census.unsafe_lines, [4, 6]);
    assert!(mentions_unsafe("m!(unsafe { 1 })".parse().expect("tokens")));
    assert!(!mentions_unsafe("#![deny(unsafe_code)] // unsafe".parse().expect("tokens")));
    assert_eq!(links("see [a](b.md#c) and [d](https://e)"), ["b.md"]);
    assert_eq!(quoted_paths("`src/x.rs` and `a/b` and `docs/`"), ["src/x.rs", "docs/"]);
}
