//! The imports and the paths of a Rust file, from its syntax tree. Code that only tests compile is left out.

use std::collections::BTreeSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Field, ImplItem, Item, Macro, Meta, PatIdent, Stmt, TraitItem, UseTree, Visibility};

use crate::rust_source::PathRef;

/// One module: a file, or an inline module in it.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Its path below the root of the crate.
    pub(crate) path: Vec<String>,
    /// The names that `use` items make.
    pub(crate) imports: Vec<Import>,
    /// Paths in code, as written.
    pub(crate) paths: Vec<PathRef>,
}

/// A name that a `use` item makes.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) line: usize,
    /// The path of the imported item, as written; for a glob that of the module.
    pub(crate) segments: Vec<String>,
    /// `name`, the other name of `as`, or `*`.
    pub(crate) name: String,
    /// Whether the item is re-exported (`pub use`).
    pub(crate) is_export: bool,
}

/// Returns the modules of the file at module path `path`, the file itself first, and the first segments of all its
/// paths.
pub(crate) fn read(path: Vec<String>, text: &str) -> syn::Result<(Vec<Module>, BTreeSet<String>)> {
    let file = syn::parse_file(text)?;
    let mut reader = Reader { modules: vec![Module { path, ..Module::default() }], ..Reader::default() };
    if !file.attrs.iter().any(is_test) {
        file.items.iter().for_each(|item| reader.visit_item(item));
    }
    Ok((reader.modules, reader.words))
}

#[derive(Default)]
struct Reader {
    modules: Vec<Module>,
    /// The module that is read now.
    current: usize,
    words: BTreeSet<String>,
}

impl Reader {
    fn module(&mut self) -> Option<&mut Module> {
        self.modules.get_mut(self.current)
    }

    fn add_path(&mut self, line: usize, segments: Vec<String>) {
        self.words.extend(segments.first().cloned());
        if segments.len() > 1
            && let Some(module) = self.module()
        {
            module.paths.push(PathRef { line, segments });
        }
    }

    fn add_import(&mut self, tree: &UseTree, prefix: &[String], is_export: bool) {
        let (last, name) = match tree {
            UseTree::Path(path) => {
                let prefix = [prefix, &[word(&path.ident)]].concat();
                return self.add_import(&path.tree, &prefix, is_export);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_import(tree, prefix, is_export));
            }
            UseTree::Name(name) => (Some(&name.ident), &name.ident),
            UseTree::Rename(rename) => (Some(&rename.ident), &rename.rename),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                return self.push_import(line, prefix.to_vec(), "*".to_owned(), is_export);
            }
        };
        let mut segments = prefix.to_vec();
        // `use a::{self}` is `use a`.
        segments.extend(last.map(word).filter(|last| last != "self"));
        let mut name_here = word(name);
        if name_here == "self" {
            name_here = segments.last().cloned().unwrap_or_default();
        }
        self.push_import(name.span().start().line, segments, name_here, is_export);
    }

    fn push_import(&mut self, line: usize, segments: Vec<String>, name: String, is_export: bool) {
        if let Some(module) = self.module() {
            module.imports.push(Import { line, segments, name, is_export });
        }
    }

    /// Adds every path in the arguments of a macro.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        // The punctuation right before a token: a path continues after `::`; after a dot is a field or a method.
        let mut before = String::new();
        for token in tokens {
            match token {
                TokenTree::Punct(punct) => {
                    before.push(punct.as_char());
                    continue;
                }
                TokenTree::Ident(ident) => {
                    if before != "::" {
                        self.end_path(&mut path, line);
                        line = ident.span().start().line;
                    }
                    if before != "." {
                        path.push(word(&ident));
                    }
                }
                TokenTree::Group(group) => {
                    self.end_path(&mut path, line);
                    self.read_tokens(group.stream());
                }
                TokenTree::Literal(_) => self.end_path(&mut path, line),
            }
            before.clear();
        }
        self.end_path(&mut path, line);
    }

    fn end_path(&mut self, path: &mut Vec<String>, line: usize) {
        if !path.is_empty() {
            self.add_path(line, std::mem::take(path));
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).iter().any(is_test) {
            return;
        }
        match item {
            Item::Use(item) => {
                let is_export = !matches!(item.vis, Visibility::Inherited);
                self.add_import(&item.tree, &[], is_export);
            }
            Item::Mod(item) => {
                let Some((_, items)) = &item.content else { return };
                let outer = self.current;
                let mut path = self.module().map(|module| module.path.clone()).unwrap_or_default();
                path.push(word(&item.ident));
                self.modules.push(Module { path, ..Module::default() });
                self.current = self.modules.len() - 1;
                for item in items {
                    self.visit_item(item);
                }
                self.current = outer;
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !attributes.iter().any(is_test) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if !matches!(item, TraitItem::Fn(item) if item.attrs.iter().any(is_test)) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !field.attrs.iter().any(is_test) {
            visit::visit_field(self, field);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if !matches!(statement, Stmt::Local(local) if local.attrs.iter().any(is_test)) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
            self.add_path(line, path.segments.iter().map(|segment| word(&segment.ident)).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        // A constant has the syntax of a new variable here.
        self.words.insert(word(&pattern.ident));
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.read_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn word(ident: &Ident) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[test]`, `#[cfg(test)]`, and `any` or `all` that begin with it, as in `rust_source`.
fn is_test(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => begins_with_test(&list.tokens),
        _ => false,
    }
}

fn begins_with_test(condition: &TokenStream) -> bool {
    let mut tokens = condition.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Ident(name)), Some(TokenTree::Group(group))) if name == "any" || name == "all" => {
            begins_with_test(&group.stream())
        }
        (Some(TokenTree::Ident(name)), _) => name == "test",
        _ => false,
    }
}
