//! Order of objects for `--sort-by`.

use serde_json::Value;

use super::json_path::{FindError, JsonPath, find, text};

/// Sorts items like kubectl, by the first value at `path` in the object of each item. Items without this value come first. Numbers
/// and quantities follow, by amount. Other texts come last, in the order of their bytes. Returns false if no item has the value.
pub(super) fn sort_by<T>(
    items: &mut Vec<T>,
    path: &JsonPath,
    object: impl Fn(&T) -> &Value,
) -> Result<bool, FindError> {
    let key = |item: &T| {
        let found = find(path, object(item))?;
        let value = found.first().copied();
        Ok(value.map(|value| amount(value).ok_or_else(|| text(value))))
    };
    let keys = items.iter().map(key).collect::<Result<Vec<_>, FindError>>()?;
    let is_found = keys.iter().any(Option::is_some);
    let mut keyed: Vec<_> = keys.into_iter().zip(items.drain(..)).collect();
    // The order must be total, also for a column with amounts and other text.
    keyed.sort_by(|(a, _), (b, _)| match (a, b) {
        (Some(Ok(a)), Some(Ok(b))) => a.total_cmp(b),
        (Some(Err(a)), Some(Err(b))) => a.cmp(b),
        (Some(a), Some(b)) => a.is_err().cmp(&b.is_err()),
        _ => a.is_some().cmp(&b.is_some()),
    });
    items.extend(keyed.into_iter().map(|(_, item)| item));
    Ok(is_found)
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
            vec![json!({"v": "Zed"}), json!({"v": "web-10"}), json!({"v": "web-2"}), json!({"v": "web-2-a"})],
            vec![json!({"v": "2"}), json!({"v": "1Ki"}), json!({"v": "1z"})],
            vec![json!({"v": "2026-01-02T00:00:00Z"}), json!({"v": "2026-01-10T00:00:00Z"})],
        ] {
            let mut items: Vec<_> = sorted.iter().rev().cloned().collect();
            assert!(sort_by(&mut items, &JsonPath::parse(".v").unwrap(), |item| item).unwrap());
            assert_eq!(items, sorted);
        }
    }

    #[test]
    fn path_without_values_is_reported() {
        let sort = |path| {
            let mut items = vec![json!({"v": [1]}), json!({"v": []}), json!({})];
            sort_by(&mut items, &JsonPath::parse(path).unwrap(), |item| item).map_err(|error| error.to_string())
        };
        assert_eq!(sort(".none"), Ok(false));
        assert_eq!(sort(".v"), Ok(true));
        assert!(sort(".v[0]").unwrap_err().contains("index 0 is out of bounds"));
        for path in ["{.v", ".v}", ".v[", ".v[0", "{.v}{.w}"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
