//! Circles of modules: files of a crate that use each other in a ring, so that none of them can be read first.
//!
//! A file uses those that its paths behind `crate::`, `self::` and `super::` lead to. What a crate's root exports
//! again and what methods reach does not show.

use std::collections::{BTreeMap, BTreeSet};

use crate::Tree;
use crate::rust::{is_test_file, production};

/// A circle of so many files can be read as one.
const SMALL: usize = 3;

/// The modules of one crate, each with those that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The largest circle of each crate that has one of more than three files: its modules, by the crate's folder.
pub fn large_circles(tree: &Tree) -> BTreeMap<&str, Vec<String>> {
    let mut crates: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for file in tree.ending(".rs").filter(|f| !is_test_file(&f.path)) {
        if let Some((folder, path)) = file.path.split_once("/src/") {
            let module = path.trim_end_matches(".rs");
            let module = if module == "lib" { "" } else { module };
            let code = production(file);
            crates.entry(folder).or_default().insert(module, code);
        }
    }
    let circles = crates.into_iter().map(|(folder, modules)| {
        let uses = |(module, code): (&&str, &String)| {
            let paths = paths(module, code).into_iter();
            let used = paths.filter_map(|path| used_module(&path, &modules));
            let used = used.filter(|used| used != module).collect();
            ((*module).to_owned(), used)
        };
        (folder, largest_circle(&modules.iter().map(uses).collect()))
    });
    circles.filter(|(_, circle)| circle.len() > SMALL).collect()
}

/// The deepest module on a path.
fn used_module(path: &[&str], modules: &BTreeMap<&str, String>) -> Option<String> {
    let starts = (1..=path.len()).rev().map(|len| path[..len].join("/"));
    let mut known = starts.filter(|start| modules.contains_key(start.as_str()));
    known.next()
}

/// The paths in a module's code, from the crate's root.
fn paths<'a>(module: &'a str, code: &'a str) -> Vec<Vec<&'a str>> {
    let here: Vec<&str> = module.split('/').filter(|part| !part.is_empty()).collect();
    let above = &here[..here.len().saturating_sub(1)];
    let mut all = Vec::new();
    for (root, base) in [
        ("crate::", &[][..]),
        ("self::", &here[..]),
        ("super::", above),
    ] {
        for (at, _) in code.match_indices(root) {
            let inside = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$';
            if !code[..at].ends_with(inside) {
                follow(&code[at + root.len()..], base.to_vec(), &mut all);
            }
        }
    }
    all
}

/// Reads one path, or the tree of them in braces. Returns the rest of the text.
fn follow<'a>(text: &'a str, mut base: Vec<&'a str>, all: &mut Vec<Vec<&'a str>>) -> &'a str {
    if let Some(tree) = text.strip_prefix('{') {
        let mut rest = tree.trim_start_matches([' ', '\n', ',']);
        while !rest.is_empty() && !rest.starts_with('}') {
            let after = follow(rest, base.clone(), all);
            let read = rest.len() > after.len();
            rest = if read { after } else { &rest[rest.len()..] };
            rest = rest.trim_start_matches([' ', '\n', ',', '*']);
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    match word {
        "super" => drop(base.pop()),
        "self" | "" => {}
        word => base.push(word),
    }
    match rest.strip_prefix("::") {
        Some(rest) => follow(rest, base, all),
        None => {
            all.push(base);
            rest
        }
    }
}

fn largest_circle(graph: &Graph) -> Vec<String> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|from| (from.as_str(), reached(graph, from)))
        .collect();
    let circle = |(from, there): (&&str, &BTreeSet<&str>)| {
        let back = there.iter().filter(|to| reached[**to].contains(*from));
        back.map(|module| (*module).to_owned()).collect::<Vec<_>>()
    };
    let circles = reached.iter().map(circle);
    circles.max_by_key(Vec::len).unwrap_or_default()
}

fn reached<'a>(graph: &'a Graph, from: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        let uses = graph.get(module).into_iter().flatten();
        next.extend(uses.map(String::as_str).filter(|used| found.insert(*used)));
    }
    found
}
