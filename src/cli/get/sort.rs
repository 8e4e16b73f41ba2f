//! Order of objects for `--sort-by`.

use serde_json::Value;

use super::json_path::{JsonPath, text};

/// Sorts items like kubectl, by the first value at `path` in the object of each item. Items without this value come first. Numbers
/// and quantities follow, by amount. Other texts come last, in alphabetical order. Adjacent digits in a text count as one number.
pub(super) fn sort_by<T>(items: &mut Vec<T>, path: &JsonPath, object: impl Fn(&T) -> &Value) {
    let key = |item: &T| {
        let value = *path.find(object(item)).first()?;
        Some(amount(value).ok_or_else(|| (natural(&text(value)), text(value))))
    };
    let mut keyed: Vec<_> = items.drain(..).map(|item| (key(&item), item)).collect();
    // The order must be total, also for a column with amounts and other text.
    keyed.sort_by(|(a, _), (b, _)| match (a, b) {
        (Some(Ok(a)), Some(Ok(b))) => a.total_cmp(b),
        (Some(Err(a)), Some(Err(b))) => a.cmp(b),
        (Some(a), Some(b)) => a.is_err().cmp(&b.is_err()),
        _ => a.is_some().cmp(&b.is_some()),
    });
    items.extend(keyed.into_iter().map(|(_, item)| item));
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

/// Returns the sort key of a text. Adjacent digits count as one number, so that `web-2` comes before `web-10`.
fn natural(text: &str) -> Vec<(char, usize, String)> {
    let letters: Vec<char> = text.chars().collect();
    let runs = letters.chunk_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit());
    let part = |run: &[char]| match run[0] {
        first if first.is_ascii_digit() => {
            let number: String = run.iter().skip_while(|digit| **digit == '0').collect();
            ('0', number.len(), number)
        }
        letter => (letter, 0, String::new()),
    };
    runs.map(part).collect()
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
            vec![json!({"v": "2"}), json!({"v": "1Ki"}), json!({"v": "1z"})],
            vec![json!({"v": "2026-01-02T00:00:00Z"}), json!({"v": "2026-01-10T00:00:00Z"})],
        ] {
            let mut items: Vec<_> = sorted.iter().rev().cloned().collect();
            sort_by(&mut items, &JsonPath::parse(".v").unwrap(), |item| item);
            assert_eq!(items, sorted);
        }
    }
}
