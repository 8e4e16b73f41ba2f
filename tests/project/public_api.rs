//! The public API of the library, as rustdoc lists it, compared with a snapshot.

use std::{env, fs, path::PathBuf};

use regex::Regex;

/// Upper limit of the number of public types, functions and methods.
const ITEMS_MAX: usize = 300;

/// Reads the pages in `DELTABUS_DOC`, which `cargo doc --no-deps --features kafka,otlp` writes to `target/doc/deltabus`. `.ci/run` sets the
/// variable; without it there is nothing to compare. After a wanted change, `INSTA_UPDATE=always` updates the snapshot.
#[test]
fn public_api_equals_its_snapshot() {
    let Some(dir) = env::var_os("DELTABUS_DOC").map(PathBuf::from) else {
        eprintln!("skipped: public_api_equals_its_snapshot (DELTABUS_DOC is not set)");
        return;
    };
    let item = pattern(r"^(struct|enum|trait|fn|type|constant|macro)\.(\w+)\.html$");
    let entries = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}; run cargo doc first", dir.display()));
    let mut pages: Vec<(String, String)> = entries
        .map(|entry| entry.expect("a readable directory").file_name().to_string_lossy().into_owned())
        .filter_map(|file| item.captures(&file).map(|found| (found[2].to_owned(), file.clone())))
        .collect();
    pages.sort();
    let declaration = pattern(r#"(?s)<pre class="rust item-decl"><code>(.*?)</code></pre>"#);
    let method = pattern(r#"(?s)<section id="(?:ty)?method[^>]*>.*?<h4 class="code-header">(.*?)</h4>"#);
    let mut lines = Vec::new();
    for (name, file) in pages {
        let page = fs::read_to_string(dir.join(file)).expect("a page of rustdoc");
        let declared = declaration.captures(&page).expect("a page has a declaration");
        lines.push(plain(&declared[1]));
        // Trait implementations, of which most are derived, follow.
        let own = page.split(r#"<h2 id="trait-implementations""#).next().unwrap_or_default();
        let own = own.split(r#"<h2 id="synthetic-implementations""#).next().unwrap_or_default();
        lines.extend(method.captures_iter(own).map(|found| format!("    {name}: {}", plain(&found[1]))));
    }
    let count = lines.len();
    assert!((100..=ITEMS_MAX).contains(&count), "{count} public items, expected 100 to {ITEMS_MAX}");
    insta::assert_snapshot!("public_api", lines.join("\n"));
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a valid pattern")
}

/// Returns the text of HTML on one line.
fn plain(html: &str) -> String {
    let hidden = pattern(r#"(?s)<span class="(?:comment|attr)">.*?</span>|<[^>]*>"#);
    let text = hidden.replace_all(html, "").replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'");
    let text = text.replace("&quot;", "\"").replace("&amp;", "&");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
