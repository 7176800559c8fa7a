//! As much of Python as the rules need: the import statements, without those in strings and comments.

/// One imported name: `module` is as written, relative dots included; `name` is what follows `import` in a `from`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    pub(crate) module: String,
    pub(crate) name: Option<String>,
    /// Below `if TYPE_CHECKING:`: no program runs it.
    pub(crate) typing_only: bool,
}

/// Every import of a file, at the top or inside functions.
pub(crate) fn imports(source: &str) -> Vec<Import> {
    let code = without_strings(source);
    let mut found = Vec::new();
    let mut lines = code.lines().enumerate();
    // How far the `if TYPE_CHECKING:` is indented that the line may be below.
    let mut block: Option<usize> = None;
    while let Some((at, whole)) = lines.next() {
        let line = at + 1;
        let text = whole.trim();
        let indent = whole.len() - whole.trim_start().len();
        if !text.is_empty() && block.is_some_and(|outer| indent <= outer) {
            block = None;
        }
        if text.starts_with("if ") && text.ends_with("TYPE_CHECKING:") && block.is_none() {
            block = Some(indent);
        }
        let typing_only = block.is_some();
        if let Some(list) = text.strip_prefix("import ") {
            for item in list.split([',', ';']) {
                let module = item.split_whitespace().next().unwrap_or_default().to_owned();
                found.push(Import { line, module, name: None, typing_only });
            }
        } else if let Some((module, first)) =
            text.strip_prefix("from ").and_then(|rest| rest.split_once(" import"))
        {
            let mut names = first.to_owned();
            while names.contains('(') && !names.contains(')') {
                let Some((_, more)) = lines.next() else { break };
                names.push_str(more);
            }
            for item in names.trim().trim_start_matches('(').trim_end_matches(')').split(',') {
                if let Some(name) = item.split_whitespace().next() {
                    found.push(Import {
                        line,
                        module: module.trim().to_owned(),
                        name: Some(name.to_owned()),
                        typing_only,
                    });
                }
            }
        }
    }
    found
}

/// The source with strings and comments blanked and every line break kept.
pub(crate) fn without_strings(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, keep) = match first {
            '#' => (rest.find('\n').unwrap_or(rest.len()), false),
            '"' | '\'' => (string_length(rest, first), false),
            _ => (first.len_utf8(), true),
        };
        let (taken, remaining) = rest.split_at(length);
        if keep {
            code.push_str(taken);
        } else {
            code.extend(taken.chars().filter(|&c| c == '\n'));
        }
        rest = remaining;
    }
    code
}

fn string_length(source: &str, quote: char) -> usize {
    let triple: String = [quote; 3].iter().collect();
    let closing = if source.starts_with(&triple) { triple } else { quote.to_string() };
    let mut at = closing.len();
    while let Some(inside) = source.get(at..).filter(|inside| !inside.is_empty()) {
        if inside.starts_with(&closing) {
            return at + closing.len();
        }
        let mut characters = inside.chars();
        let hidden = characters.next() == Some('\\');
        at += inside.chars().next().map_or(1, char::len_utf8);
        if hidden {
            at += characters.next().map_or(0, char::len_utf8);
        } else if closing.len() == 1 && inside.starts_with('\n') {
            return at; // not closed: a fault that Python itself reports
        }
    }
    source.len()
}
