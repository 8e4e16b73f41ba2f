//! Endpoints for the probes of the kubelet, for metrics, and for the state of resources and handlers as JSON.

use std::fmt::Write as _;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::IntoResponse,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::ServeState;
use crate::{
    delivery::status::HandlerState,
    informer::Informer,
    journal::{Journal, NotWritable},
    list_watch::kube::Scope,
    metrics,
    mutex::lock,
    registry::{Registry, UNDISCOVERED, why_unsynced},
};

/// Result of one check.
enum Outcome {
    Passed,
    /// The check fails, but the engine is ready without it, for this reason.
    Excused(String),
    Failed(String),
}

/// Succeeds if the process answers.
pub(super) async fn livez(RawQuery(query): RawQuery) -> impl IntoResponse {
    report("livez", query.as_deref(), &[("ping".to_owned(), Outcome::Passed)])
}

/// `/readyz` and `/healthz`. Succeeds if the first discovery has ended, every handler has started, and every required resource is
/// synced. Resources that are not served, not watchable or not allowed are ignored. While the journal is not writable, units
/// created after the first discovery are also ignored, because other types are readable.
pub(super) async fn readyz(State(state): State<ServeState>, uri: Uri) -> impl IntoResponse {
    report(uri.path().trim_matches('/'), uri.query(), &readiness(&state))
}

fn readiness(state: &ServeState) -> Vec<(String, Outcome)> {
    let failed = |why: &str| Outcome::Failed(why.to_owned());
    let mut checks = Vec::new();
    let discovered = state.hub.registry.is_discovered();
    checks.push(("discovery".to_owned(), if discovered { Outcome::Passed } else { failed(UNDISCOVERED) }));
    let health = state.hub.journal.health();
    for view in state.hub.registry.views() {
        let why = why_unsynced(&view);
        let waits = view.late && health.not_writable.is_some() && why.is_some();
        let note = match &why {
            Some(_) if waits => format!(" ({}, waits for the store)", view.state.as_ref()),
            None if !view.synced => format!(" ({})", view.state.as_ref()),
            _ => String::new(),
        };
        let outcome = match why.filter(|_| !waits) {
            None => Outcome::Passed,
            Some(why) if view.is_required() => Outcome::Failed(why),
            Some(why) => Outcome::Excused(why),
        };
        let namespace = view.namespace.map_or_else(String::new, |namespace| format!("/{namespace}"));
        checks.push((format!("resource/{}/{}{namespace}{note}", view.name, view.plural), outcome));
    }
    for handler in state.handlers.views() {
        let starts = handler.state == HandlerState::Starting;
        checks
            .push((format!("handler/{}", handler.name), if starts { failed("not started") } else { Outcome::Passed }));
    }
    if health.stored {
        // A journal that is not writable does not make the engine unready, because the cache can be read.
        let note = health.not_writable.map_or_else(String::new, |why| format!(" ({why})"));
        checks.push((format!("journal{note}"), Outcome::Passed));
    }
    checks
}

/// `/v1/resources`.
pub(super) async fn resources(State(state): State<ServeState>) -> Json<Value> {
    let registry = &state.hub.registry;
    let not_writable = state.hub.journal.health().not_writable;
    let running = registry.informers().into_iter().map(|informer| unit_row(registry, &informer, not_writable.as_ref()));
    let waiting = registry.waiting().into_values().map(|row| json!(row.view()));
    let refusal = lock(&registry.reloads).refusal.clone();
    let refusal = refusal.map(|(at, error)| {
        let ago = Timestamp::now().duration_since(at).as_secs_f64();
        json!({ "error": error, "secondsAgo": ago.max(0.0) })
    });
    Json(json!({
        "server": *state.server,
        "resources": running.chain(waiting).collect::<Vec<_>>(),
        "refusedConfiguration": refusal,
    }))
}

/// Returns the view of a unit, with the names of its type and the selectors of its requests. If the unit cannot sync because
/// the store is not writable, the message in the view says so.
fn unit_row(registry: &Registry, informer: &Informer, not_writable: Option<&NotWritable>) -> Value {
    let Scope { labels, fields, namespace_fields, .. } = &informer.options.scope;
    let fields = [fields, namespace_fields].into_iter().filter(|fields| !fields.is_empty()).map(String::as_str);
    let names = registry.names(&informer.resource);
    let mut row = json!(informer.status.view());
    if let Some(why) = not_writable
        && row["synced"] == false
        && row["message"].is_null()
    {
        row["message"] = format!("waits for the store: {why}").into();
    }
    row["unit"] = informer.id.0.into();
    row["namespaced"] = informer.resource.namespaced.into();
    row["namespaces"] = json!(informer.options.gate.namespaces.patterns());
    row["labelSelector"] = labels.as_str().into();
    row["fieldSelector"] = fields.collect::<Vec<_>>().join(",").into();
    row["ignoreAnnotation"] = informer.options.plan.heeds_opt_out.into();
    row["singular"] = names.singular.into();
    row["shortNames"] = names.short_names.into();
    row
}

/// `/v1/handlers`.
pub(super) async fn handlers(State(state): State<ServeState>) -> Json<Value> {
    Json(json!({ "handlers": state.handlers.views(), "journal": journal_row(&state.hub.journal) }))
}

/// Returns the state of the journal. If the journal has no directory, returns only its id.
fn journal_row(journal: &Journal) -> Value {
    let health = journal.health();
    if !health.stored {
        return json!({ "id": journal.id(), "stored": false });
    }
    json!({
        "id": journal.id(),
        "stored": true,
        "writable": health.not_writable.is_none(),
        "lastError": health.not_writable.map(|why| why.to_string()),
        "diskBytes": health.disk_bytes,
        "first": health.first.0,
        "needed": health.needed.0,
        "durable": health.durable.0,
        "last": health.last.0,
        "syncs": health.syncs,
        "lastSyncSeconds": health.last_sync.as_secs_f64(),
        "failures": health.failures,
    })
}

/// Returns the metrics: OpenMetrics if `Accept` requests it, else the older Prometheus text.
pub(super) async fn metrics(State(state): State<ServeState>, headers: HeaderMap) -> impl IntoResponse {
    let journal = state.hub.journal.health();
    let (reloads, timings) = (lock(&state.hub.registry.reloads).clone(), state.hub.registry.timings());
    let (resources, handlers) = (state.hub.registry.views(), state.handlers.views());
    let text = metrics::render(&resources, &handlers, &journal, &reloads, state.hub.counts(), timings);
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (content_type, text) = if accept.contains("application/openmetrics-text") {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", text)
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", metrics::to_prometheus(&text))
    };
    ([(header::CONTENT_TYPE, content_type)], text)
}

/// Formats a health response like the API server: `ok` if every check passes. If a check fails, or `query` has `verbose`, shows every
/// check. Otherwise shows the excused checks.
fn report(name: &str, query: Option<&str>, checks: &[(String, Outcome)]) -> impl IntoResponse + use<> {
    let failed = checks.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
    let verbose = query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
    let code = if failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut text = String::new();
    for (check, outcome) in checks {
        let line = match outcome {
            Outcome::Passed if failed || verbose => writeln!(text, "[+]{check} ok"),
            Outcome::Passed => Ok(()),
            Outcome::Excused(why) => writeln!(text, "[!]{check} not required any more: {why}"),
            Outcome::Failed(why) => writeln!(text, "[-]{check} failed: {why}"),
        };
        line.expect("writing to a string succeeds");
    }
    if text.is_empty() {
        return (code, "ok".to_owned());
    }
    let verdict = if failed { "failed" } else { "passed" };
    writeln!(text, "{name} check {verdict}").expect("writing to a string succeeds");
    (code, text)
}
