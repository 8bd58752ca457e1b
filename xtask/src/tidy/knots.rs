//! Import knots: modules of a folder that import each other, at once or by way of others.
//!
//! The folder is a crate's `src`, or that of a module with modules of its own. An import is a path
//! from the folder's root in code, `crate::…` or as many `super::` as lead there. Comments and
//! tests do not count. A name that the root re-exports counts as an import of its module, so a
//! re-export hides no knot.

use super::Finding;
use super::source::{Source, words};
use std::collections::{BTreeMap, BTreeSet};

/// Folders whose modules form no knot, with the file of their root.
const UNKNOTTED: &[(&str, &str)] = &[
    ("crates/engine/src/", "lib.rs"),
    ("crates/host/src/", "lib.rs"),
    ("crates/sim/src/", "lib.rs"),
    ("crates/sim/src/world/", "mod.rs"),
];

/// By module: the modules that it imports, each with the first place.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<String, Place<'a>>>;

#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a str,
    line: usize,
}

/// The knots of all folders that must have none.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    UNKNOTTED.iter().flat_map(|(folder, root)| of_folder(folder, root, sources)).collect()
}

fn of_folder(folder: &str, root: &str, sources: &[Source]) -> Vec<Finding> {
    let inside = |source: &'_ &Source| source.path.starts_with(folder) && !source.is_test();
    let sources: Vec<&Source> = sources.iter().filter(inside).collect();
    let root = format!("{folder}{root}");
    let root_path = root_path(folder);
    let exports = sources.iter().find(|source| source.path == root).map(|root| re_exports(root));
    let exports = exports.unwrap_or_default();
    let modules: BTreeSet<&str> =
        sources.iter().map(|source| module_path(source, folder)[0]).collect();
    let mut imports = Imports::new();
    for source in sources.iter().filter(|source| source.path != root) {
        let of = module_path(source, folder);
        for (name, line) in names_of_root(source, &root_path, of.len()) {
            let module = exports.get(&name).unwrap_or(&name);
            if modules.contains(module.as_str()) && module != of[0] {
                let place = Place { path: &source.path, line };
                imports.entry(of[0]).or_default().entry(module.clone()).or_insert(place);
            }
        }
    }
    let edges = imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (*from, to)));
    let knotted = edges.filter_map(|(from, (to, place))| {
        let back = way(&imports, to, from)?;
        let what = format!("import knot: {from} -> {}", back.join(" -> "));
        Some(Finding::at(place.path, place.line, what))
    });
    knotted.collect()
}

/// The path of a folder's module from the crate's root: `crate::`, or `crate::world::`.
fn root_path(folder: &str) -> String {
    let modules = folder.split_once("/src/").map_or("", |(_, modules)| modules);
    format!("crate::{}", modules.replace('/', "::"))
}

/// The modules that a file is in, the outermost first.
fn module_path<'a>(source: &'a Source, folder: &str) -> Vec<&'a str> {
    let path = source.path[folder.len()..].trim_end_matches(".rs");
    path.trim_end_matches("/mod").split('/').collect()
}

/// The shortest way from a module to another one along imports, both included.
fn way(imports: &Imports<'_>, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut next = 0;
    while let Some(way) = ways.get(next).cloned() {
        let last = way.last().expect("a way has a start");
        if last == to {
            return Some(way);
        }
        for module in imports.get(last.as_str()).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(module.clone()) {
                ways.push(way.iter().chain([module]).cloned().collect());
            }
        }
        next += 1;
    }
    None
}

/// The names that code outside of tests takes from the folder's root, with their lines. `depth` is
/// that of the file's module.
fn names_of_root(source: &Source, root_path: &str, depth: usize) -> Vec<(String, usize)> {
    let code = &source.code;
    let mut found = Vec::new();
    for at in words(code, "crate").into_iter().chain(words(code, "super")) {
        let line = source.line_of(at);
        let Some(rest) = path_at_root(code, at, root_path, depth) else { continue };
        if line <= source.lines_before_tests() {
            found.extend(first_names(rest).into_iter().map(|name| (name, line)));
        }
    }
    found.sort_by_key(|(_, line)| *line);
    found
}

/// The rest of the path after the root's `::`, if the path at `at` leads to the root.
fn path_at_root<'a>(code: &'a str, at: usize, root_path: &str, depth: usize) -> Option<&'a str> {
    if code[..at].ends_with("::") {
        return None;
    }
    let mut rest = &code[at..];
    if rest.starts_with("crate") {
        return rest.strip_prefix(root_path);
    }
    let mut supers = 0;
    while let Some(after) = rest.strip_prefix("super::") {
        (rest, supers) = (after, supers + 1);
    }
    (supers == depth).then_some(rest)
}

/// The first names of a use tree: one, or those of a list.
fn first_names(tree: &str) -> Vec<String> {
    let Some(list) = tree.strip_prefix('{') else {
        return first_name(tree).into_iter().collect();
    };
    let mut depth = 0_usize;
    let mut names = Vec::new();
    let mut starts = true;
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => break,
            b'}' => depth -= 1,
            b',' => starts |= depth == 0,
            _ if byte.is_ascii_whitespace() => {}
            _ if starts && depth == 0 => {
                names.extend(first_name(&list[at..]));
                starts = false;
            }
            _ => {}
        }
    }
    names
}

fn first_name(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// Names that the root takes from its modules, and the module of each.
fn re_exports(root: &Source) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for at in words(&root.code, "use") {
        let statement = root.code[at + 3..].split(';').next().unwrap_or_default().trim();
        let path = statement.trim_start_matches("crate::").trim_start_matches("self::");
        let Some(module) = first_name(path) else { continue };
        for leaf in path.split([',', '{', '}']) {
            let leaf = leaf.trim().rsplit([' ', ':']).next().unwrap_or_default();
            if let Some(name) = first_name(leaf) {
                exports.insert(name, module.clone());
            }
        }
    }
    exports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| Source::new(&format!("crates/x/src/{path}"), text);
        let sources: Vec<Source> = files.iter().map(source).collect();
        let mut findings = of_folder("crates/x/src/", "lib.rs", &sources);
        findings.extend(of_folder("crates/x/src/m/", "mod.rs", &sources));
        let findings = findings.into_iter();
        findings
            .map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn modules_that_import_each_other_are_a_knot() {
        let files = [
            ("lib.rs", "pub mod a;\npub mod b;\n"),
            ("a.rs", "//! S.\nuse crate::b::B;\n"),
            ("b/mod.rs", "mod c;\n"),
            ("b/c.rs", "use crate::{a::{A, b}, d};\n"),
        ];
        let knots = [
            "crates/x/src/a.rs:2 import knot: a -> b -> a",
            "crates/x/src/b/c.rs:1 import knot: b -> a -> b",
        ];
        assert_eq!(found(&files), knots);
        assert!(found(&files[..3]).is_empty());
    }

    #[test]
    fn knot_goes_by_way_of_others_and_of_super() {
        let files = [
            ("a.rs", "fn f() { crate::b::g() }\n"),
            ("b.rs", "fn g() { super::c::h() }\n"),
            ("c/d.rs", "use super::super::{self, a};\nuse super::b;\n"),
            ("e.rs", "use crate::a;\n"),
        ];
        let knots = found(&files);
        assert_eq!(knots.len(), 3, "{knots:?}");
        assert!(knots[0].ends_with("import knot: a -> b -> c -> a"), "{knots:?}");
    }

    #[test]
    fn modules_of_a_module_are_a_knot_by_way_of_super_and_of_crate() {
        let files = [
            ("m/mod.rs", "mod a;\nmod b;\npub use b::B;\n"),
            ("m/a/c.rs", "use super::super::b;\nuse super::super::super::b;\n"),
            ("m/b.rs", "use crate::m::a;\nuse crate::a;\n"),
        ];
        let knots = [
            "crates/x/src/m/a/c.rs:1 import knot: a -> b -> a",
            "crates/x/src/m/b.rs:1 import knot: b -> a -> b",
        ];
        assert_eq!(found(&files), knots);
        let by_re_export = [files[0], ("m/a.rs", "use super::B;\n"), files[2]];
        assert_eq!(found(&by_re_export).len(), 2);
    }

    #[test]
    fn re_export_hides_no_knot() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::{inner::A, f as g};\npub use b::B;\n"),
            ("a.rs", "use crate::B;\n"),
            ("b.rs", "use crate::g;\n"),
        ];
        assert_eq!(found(&files).len(), 2);
    }

    #[test]
    fn comments_and_tests_import_nothing() {
        let files = [
            ("a.rs", "/// [`crate::b`]\nfn f() {}\n#[cfg(test)]\nmod tests {\n use crate::b;\n}\n"),
            ("a/tests.rs", "use crate::b;\n"),
            ("b.rs", "use crate::a;\npub(in crate::b) fn f() {}\n"),
        ];
        assert!(found(&files).is_empty());
    }
}
