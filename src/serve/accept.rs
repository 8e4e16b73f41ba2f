//! Choice of a JSON form by the media ranges of the header `Accept`.

use axum::http::{HeaderMap, header};

/// Calls `pick` for each JSON range in `Accept`, with the parameters `as`, `g` and `v` of the range. Returns the first result of
/// `pick` that is not `None`. If the request has no `Accept`, returns `plain`.
pub(super) fn negotiate<'a, T>(
    headers: &'a HeaderMap,
    plain: T,
    pick: impl Fn([Option<&'a str>; 3]) -> Option<T>,
) -> Option<T> {
    let values = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let mut ranges = values.flat_map(|value| value.split(',')).filter(|range| !range.trim().is_empty()).peekable();
    if ranges.peek().is_none() {
        return Some(plain);
    }
    ranges.find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters = parts.filter_map(|part| part.split_once('='));
        let parameter = |name: &str| parameters.clone().find(|(key, _)| *key == name).map(|(_, value)| value);
        let is_json = matches!(&*media_type, "application/json" | "application/*" | "*/*");
        is_json.then(|| pick(["as", "g", "v"].map(parameter)))?
    })
}
