//! Errors of a configuration, all at once.

use super::*;

#[test]
fn one_mistake_does_not_hide_another() {
    let mut layers = layers::Layers::default();
    let text = "[resources.a]\nmatch = [\"podz\"]\n[kube]\npage_size = 99999999999999999999\n[handlers.out]\ntype = \"stdot\"\n\
                intial = \"send\"\n[handlers.other]\ntype = \"stdout\"\nresources = [\"b\"]\n";
    layers.add_text("a", text);
    let CheckedConfig { loaded, mut errors } = CheckedConfig::of(layers, ConfigPlace::Here);
    errors.sort();
    let errors: Vec<_> = errors.iter().map(|error| (error.key.as_str(), error.message.as_str())).collect();
    let expected = [
        ("kube.page_size", "the number 99999999999999999999 is too large"),
        ("handlers.out.type", "expected one of"),
        ("handlers.out.intial", "unknown key; did you mean `initial`?"),
        ("handlers.other.resources[0]", "there is no [resources.b]"),
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for ((key, message), (expected_key, expected)) in errors.iter().zip(expected) {
        assert_eq!(*key, expected_key);
        assert!(message.starts_with(expected), "{message}");
    }
    assert_eq!(loaded.config.pattern("a", 0), "podz", "what has no error can be checked further");
}

#[test]
fn unreadable_file_prevents_further_checks() {
    let mut layers = layers::Layers::default();
    layers.add_text("a", "[resources.a]\nmatch = [\"pods\"]\nx = 1\n");
    layers.add_text("b", "[handlers\n");
    let CheckedConfig { loaded, errors } = CheckedConfig::of(layers, ConfigPlace::Here);
    assert!(matches!(errors.as_slice(), [one] if one.message.starts_with("invalid TOML")), "{errors:?}");
    assert!(loaded.config.resources.is_empty());
}
