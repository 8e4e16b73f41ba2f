//! `format`, `template` and `once_key` of `[handlers.<name>]`: the form in which a handler sends events, and the key of an event.

use serde::de::IgnoredAny;

use super::{DataFormat, EventType, HandlerConfig, SinkConfig, report::Section};
use crate::{
    cloud_event::{
        error::{TemplateError, TemplateErrorKind},
        template::{Template, VARIABLES},
    },
    journal::ChangeKind,
    suggestion::{quoted, suggestion},
};

impl HandlerConfig {
    /// Checks `format`, `template` and `once_key`. Renders the templates with a sample event of each kind that the handler gets. The
    /// sample event has every field that the template reads.
    pub(super) fn check_format(&self, at: &mut Section<'_>) {
        match (&self.template, self.options.format == DataFormat::Template) {
            (None, true) if self.sink != SinkConfig::Blackhole => {
                at.error(&["template"], "missing `template`: expected a Jinja template of the text to send");
            }
            (Some(_), false) => at.warn(&["template"], "has no effect without format = \"template\""),
            _ => {}
        }
        if let Some(template) = &self.template {
            let no_json = self.check_template("template", "the handler will give up", template, at);
            if no_json && matches!(self.sink, SinkConfig::Webhook(_)) && self.batch().max_events > 1 {
                let message = "may produce invalid JSON, but a batch is a JSON array of its outputs: expected JSON, or no `batch`";
                at.warn(&["template"], message);
            }
        }
        if let Some(key) = &self.options.once_key {
            if !self.options.is_throttled() {
                at.warn(&["once_key"], "has no effect without `once_per`");
            }
            self.check_template("once_key", "instead of this key, the object is the key of", key, at);
        }
    }

    /// Checks a template; `failing` says what happens to events for which it fails. Returns true if a text may not be JSON.
    fn check_template(&self, option: &'static str, failing: &str, text: &str, at: &mut Section<'_>) -> bool {
        let Some(template) = at.valid(&[option], Template::compile(text)) else { return false };
        for mistake in template.mistakes() {
            at.error(&[option], mistake.to_string());
        }
        let unknown: Vec<_> = template.unknown_names().collect();
        for name in &unknown {
            at.error(&[option], format!("unknown name `{name}`; {}", suggestion(name, VARIABLES)));
        }
        unknown.is_empty() && self.try_out(option, failing, &template, at)
    }

    fn try_out(&self, option: &'static str, failing: &str, template: &Template, at: &mut Section<'_>) -> bool {
        let (mut wrong, mut no_json) = (Vec::new(), false);
        let mut undefined: Vec<(TemplateError, Vec<&str>)> = Vec::new();
        for event in self.options.on.iter().map(|event| event.kind()) {
            for truth in [true, false] {
                match template.try_out(event, truth) {
                    Ok(text) => no_json |= serde_json::from_str::<IgnoredAny>(&text).is_err(),
                    Err(error) => match (error.kind, undefined.iter_mut().find(|(known, _)| *known == error)) {
                        (TemplateErrorKind::Wrong, _) if !wrong.contains(&error) => wrong.push(error),
                        (TemplateErrorKind::Undefined, Some((_, events))) if truth => events.push(event.as_str()),
                        (TemplateErrorKind::Undefined, None) if truth => undefined.push((error, vec![event.as_str()])),
                        _ => {}
                    },
                }
            }
        }
        // An unknown filter, test or method was already reported.
        wrong.retain(|error| template.mistakes().is_empty() || !error.to_string().contains("unknown "));
        for error in wrong {
            at.error(&[option], error.to_string());
        }
        for (error, events) in undefined {
            at.warn(&[option], format!("{failing} some or all {} events: {error}", quoted(events)));
        }
        no_json
    }
}

impl EventType {
    /// Returns the kind of change that events of this type report.
    pub(crate) fn kind(self) -> ChangeKind {
        match self {
            Self::Added => ChangeKind::Added,
            Self::Updated => ChangeKind::Updated,
            Self::Deleted => ChangeKind::Deleted,
            Self::Removed => ChangeKind::Removed,
            Self::Synced => ChangeKind::Synced,
        }
    }
}
