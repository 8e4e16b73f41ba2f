//! Suggestions for names that a user has misspelt.

/// Maximum number of names that a suggestion lists.
const NAMES_MAX: usize = 64;

/// Returns the most similar known name, if it is similar enough.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const NEAR: f64 = 0.8;
    let name = name.to_lowercase().replace('-', "_");
    let similarity = |known: &str| strsim::jaro_winkler(&name, &known.to_lowercase().replace('-', "_"));
    let scored = known.into_iter().map(|known| (similarity(known), known)).filter(|(score, _)| *score >= NEAR);
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// Formats names as `` `a`, `b`, `c` ``.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Suggests the most similar name, or lists up to 64 names if none is similar.
pub(crate) fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = nearest(name, known.clone()) {
        return format!("did you mean `{near}`?");
    }
    let more = known.clone().into_iter().count().saturating_sub(NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("expected one of {}{more}", quoted(known.into_iter().take(NAMES_MAX)))
}
