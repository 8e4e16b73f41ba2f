//! Order of objects for `--sort-by`.

use std::cmp::Ordering;

use serde_json::Value;

use super::json_path::{JsonPath, text};

/// Sorts items by the first value at the path in their objects, like kubectl. Missing values come first. Quantities and
/// numbers are compared by amount, and text by letters, with runs of digits as numbers.
pub(super) fn sort_by<T>(items: &mut Vec<T>, path: &JsonPath, object: impl Fn(&T) -> &Value) {
    let key = |item: &T| path.find(object(item)).first().map(|value| (*value).clone());
    let mut keyed: Vec<_> = items.drain(..).map(|item| (key(&item), item)).collect();
    keyed.sort_by(|(a, _), (b, _)| compare(a.as_ref(), b.as_ref()));
    items.extend(keyed.into_iter().map(|(_, item)| item));
}

fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let (Some(a), Some(b)) = (a, b) else { return a.is_some().cmp(&b.is_some()) };
    match (amount(a), amount(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => natural(&text(a), &text(b)),
    }
}

/// Parses a number or a quantity: `2`, `"250m"`, `"1.5Gi"`.
fn amount(value: &Value) -> Option<f64> {
    let Value::String(text) = value else { return value.as_f64() };
    let end = text.find(|letter: char| !matches!(letter, '0'..='9' | '.' | '-' | '+')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let power = |units: &[&str]| i32::try_from(units.iter().position(|known| *known == unit)?).ok();
    match power(&["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]) {
        Some(power) => Some(number * 1024_f64.powi(power)),
        None => Some(number * 1000_f64.powi(power(&["n", "u", "m", "", "k", "M", "G", "T", "P", "E"])? - 3)),
    }
}

/// Compares texts; runs of digits are compared as numbers, so that `web-2` comes before `web-10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(x), Some(y)) = (left.chars().next(), right.chars().next()) {
        let (order, lengths) = if x.is_ascii_digit() && y.is_ascii_digit() {
            let digits = |text: &str| text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
            let lengths = (digits(left), digits(right));
            let numbers = (left[..lengths.0].trim_start_matches('0'), right[..lengths.1].trim_start_matches('0'));
            (numbers.0.len().cmp(&numbers.1.len()).then_with(|| numbers.0.cmp(numbers.1)), lengths)
        } else {
            (x.cmp(&y), (x.len_utf8(), y.len_utf8()))
        };
        if order.is_ne() {
            return order;
        }
        (left, right) = (&left[lengths.0..], &right[lengths.1..]);
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_sorted_like_kubectl() {
        for sorted in [
            vec![json!({}), json!({"v": 1}), json!({"v": 2.5}), json!({"v": 10})],
            vec![
                json!({"v": "250m"}),
                json!({"v": "1"}),
                json!({"v": "1M"}),
                json!({"v": "999Ki"}),
                json!({"v": "1Mi"}),
            ],
            vec![json!({"v": "web-2"}), json!({"v": "web-10"}), json!({"v": "web-10-a"}), json!({"v": "x"})],
            vec![json!({"v": "2026-01-02T00:00:00Z"}), json!({"v": "2026-01-10T00:00:00Z"})],
        ] {
            let mut items: Vec<_> = sorted.iter().rev().cloned().collect();
            sort_by(&mut items, &JsonPath::parse(".v").unwrap(), |item| item);
            assert_eq!(items, sorted);
        }
    }
}
