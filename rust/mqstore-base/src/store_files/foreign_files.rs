//! Files that other programs leave in the folders of a store, known by their names.

/// Returns the program that leaves files with this name in the folders of others; `None` for any other name. Such a
/// file is no damage of a store.
pub fn foreign_file(name: &str) -> Option<&'static str> {
    let hidden = name.strip_prefix('.');
    let has_suffix = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    let is_rsync = |rest: &str| {
        // The name of the file, a dot, and six random letters or digits.
        let parts = rest.rsplit_once('.');
        parts.is_some_and(|(own, random)| {
            !own.is_empty() && random.len() == 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
    };
    match name {
        ".DS_Store" | ".localized" | ".Spotlight-V100" | ".Trashes" | ".fseventsd" => return Some("macOS"),
        "Thumbs.db" | "ehthumbs.db" | "desktop.ini" | "Desktop.ini" => return Some("Windows"),
        ".directory" => return Some("a file manager"),
        ".~tmp~" | ".rsync-partial" => return Some("rsync"),
        _ => {}
    }
    if name.starts_with("._") {
        Some("macOS")
    } else if name.ends_with('~')
        || name.starts_with(".#")
        || name.len() > 1 && name.starts_with('#') && name.ends_with('#')
        || hidden.is_some() && has_suffix(&[".swp", ".swo", ".swx"])
    {
        Some("an editor")
    } else if hidden.is_some_and(|rest| rest.starts_with("nfs") || rest.starts_with("fuse_hidden")) {
        Some("the network file system")
    } else if hidden.is_some_and(|rest| is_rsync(rest) || rest.starts_with("goutputstream-")) {
        Some("a copying program")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_programs_are_known_by_their_names() {
        for name in [
            ".DS_Store",
            "._00000000000000000000",
            "Thumbs.db",
            "desktop.ini",
            "topics.json~",
            ".00000000000000000000.swp",
            ".#00000000000000000000",
            "#00000000000000000000#",
            ".00000000000000000000.a1B2c3",
            ".~tmp~",
            ".nfs000000000012ab3400000001",
        ] {
            assert!(foreign_file(name).is_some(), "{name}");
        }
        for name in [
            "00000000000000000000",
            "00000000000000000000.bak",
            "20260101000000000",
            ".mqstore",
            ".hidden",
            ".a.b1",
            "#",
            "notes",
            "",
        ] {
            assert_eq!(foreign_file(name), None, "{name}");
        }
    }
}
