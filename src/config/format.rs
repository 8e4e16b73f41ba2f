//! `format` and `template` of `[handlers.<name>]`: the form in which a handler sends events.

use serde::de::IgnoredAny;

use super::{
    EventType, FormatSettings, HandlerConfig, SinkConfig,
    error::{quoted, suggestion},
    report::Section,
};
use crate::{
    cloud_event::{
        error::{TemplateError, TemplateErrorKind},
        template::{Template, VARIABLES},
    },
    journal::ChangeKind,
};

impl HandlerConfig {
    /// Checks `format` and `template`. Renders the template with a sample event of each kind that the handler gets. The sample
    /// event has every field that the template reads.
    pub(super) fn check_format(&self, at: &mut Section<'_>) {
        match (&self.template, self.options.format == FormatSettings::Template) {
            (None, true) if self.sink != SinkConfig::Blackhole => {
                at.error(&["template"], "missing `template`: expected a Jinja template of the text to send");
            }
            (Some(_), false) => at.warn(&["template"], "has no effect without format = \"template\""),
            _ => {}
        }
        let Some(template) = &self.template else { return };
        let Some(template) = at.valid(&["template"], Template::compile(template)) else { return };
        for mistake in template.mistakes() {
            at.error(&["template"], mistake.to_string());
        }
        let mut unknown = template.unknown_names().peekable();
        if unknown.peek().is_none() {
            self.try_out(&template, at);
        }
        for name in unknown {
            at.error(&["template"], format!("unknown name `{name}`; {}", suggestion(name, VARIABLES)));
        }
    }

    fn try_out(&self, template: &Template, at: &mut Section<'_>) {
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
            at.error(&["template"], error.to_string());
        }
        for (error, events) in undefined {
            let message = format!("the handler will give up some or all {} events: {error}", quoted(events));
            at.warn(&["template"], message);
        }
        if no_json && matches!(self.sink, SinkConfig::Webhook(_)) && self.batch().max_events > 1 {
            let message =
                "may produce invalid JSON, but a batch is a JSON array of its outputs: expected JSON, or no `batch`";
            at.warn(&["template"], message);
        }
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
