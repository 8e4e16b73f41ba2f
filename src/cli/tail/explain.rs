//! Explanation below an event: which handlers get it, and why others do not.

use std::io;

use crate::{
    change::{Cause, Change},
    cloud_event::cluster_of,
    config::Config,
    discovery::{Catalog, ObjectType},
    engine::dry_run::DryRun,
    journal::{ChangeKind, Record, Sequence, UnitId},
    object::{Object, ResourceType},
    printable::printable,
    subscribe::query::kind,
};
use serde_json::Value;

use super::show::object_of;

/// Writer of explanations for the handlers of a configuration.
pub(super) struct Explainer {
    config: Config,
    /// Types of the server. The catalog is needed to find the entry of a type.
    pub(super) catalog: Catalog,
    /// Dry run of the handlers; `None` until the first event. The dry run needs the name of the cluster, which an event contains.
    dry_run: Option<DryRun>,
}

impl Explainer {
    pub(super) fn new(config: Config) -> Self {
        Self { config, catalog: Catalog::default(), dry_run: None }
    }

    /// Appends a line for each handler: the handler gets the event, or the reason why not. If the event has no object, appends one
    /// line that says so. If the message is not an event, appends nothing.
    ///
    /// # Errors
    /// Fails if the handlers of the configuration cannot be prepared.
    pub(super) fn explain(&mut self, out: &mut Vec<u8>, word: &str, data: &str) -> io::Result<()> {
        let Some(kind) = kind(word) else { return Ok(()) };
        let Ok(event) = serde_json::from_str::<Value>(data) else { return Ok(()) };
        let Some(change) = change(kind, &event) else {
            out.extend_from_slice(b"  cannot explain this event: it has no object\n");
            return Ok(());
        };
        let resource = resource(&event);
        self.catalog = std::mem::take(&mut self.catalog).holding(&resource);
        if self.dry_run.is_none() {
            let cluster = cluster_of(text(&event, "source"));
            self.dry_run = Some(DryRun::new(&self.config, cluster.as_deref()).map_err(io::Error::other)?);
        }
        let Some(dry_run) = &self.dry_run else { return Ok(()) };
        let lacks_old = change.lacks_old();
        let record = Record { sequence: Sequence(0), unit: UnitId(0), time_micros: 0, change, old_lost: lacks_old };
        let said = dry_run.explain(&self.catalog, &resource, &record);
        let width = said.keys().map(|name| name.len()).max().unwrap_or(0);
        for (handler, why) in said {
            let said = match why {
                None if lacks_old => "probably sent: the event has no previous object".to_owned(),
                None => "sent".to_owned(),
                Some(why) => format!("not sent: {}", printable(&why)),
            };
            out.extend_from_slice(format!("  {handler:<width$}  {said}\n").as_bytes());
        }
        Ok(())
    }
}

fn text<'a>(event: &'a Value, name: &str) -> &'a str {
    event[name].as_str().unwrap_or_default()
}

/// Returns the change that an event describes; `None` if the event is incomplete.
fn change(kind: ChangeKind, event: &Value) -> Option<Change> {
    let data = &event["data"];
    let state = |name: &str| {
        let state = data.get(name).filter(|state| state.is_object())?;
        Object::from_json(state.to_string().as_bytes()).ok()
    };
    if kind == ChangeKind::Synced {
        let objects = data["objects"].as_u64().unwrap_or_default();
        return Some(Change::Synced { objects, resource_version: text(data, "resourceversion").into() });
    }
    let cause = text(event, "cause").parse().unwrap_or(Cause::Watch);
    let object = object_of(data)?;
    Some(match kind {
        ChangeKind::Added => Change::Added { object, cause },
        ChangeKind::Deleted => Change::Deleted { object, tombstone: data["finalstateunknown"] == true, cause },
        ChangeKind::Removed => Change::Removed { object, cause },
        _ if cause == (Cause::Resync { round: 0 }) => Change::Unchanged { object, cause },
        _ => Change::Updated { old: state("old").unwrap_or_else(|| object.clone()), object, cause },
    })
}

fn resource(event: &Value) -> ResourceType {
    let ObjectType { group, version, kind } = ObjectType::new(text(event, "apiversion"), text(event, "kind"));
    let (plural, namespaced) = (text(event, "resource").to_owned(), event.get("namespace").is_some());
    ResourceType { group, version, kind, plural, namespaced }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CONFIG: &str = "[resources.pods]\nmatch = [\"pods\"]\n[handlers.out]\ntype = \"stdout\"\n\
                          [handlers.ready]\ntype = \"blackhole\"\non = [\"updated\"]\nchanged = [\"spec\"]\nwhen = 'cluster == \"prod\"'\n";

    fn explained(word: &str, event: &Value) -> String {
        explained_by(CONFIG, word, event)
    }

    fn explained_by(config: &str, word: &str, event: &Value) -> String {
        let mut out = Vec::new();
        let mut explainer = Explainer::new(Config::from_toml_str(config).unwrap());
        explainer.explain(&mut out, word, &event.to_string()).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn event(old: Option<&str>, new: &str) -> Value {
        let pod = |spec: &str| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "n", "resourceVersion": spec }, "spec": spec });
        let mut data = json!({ "object": pod(new) });
        if let Some(old) = old {
            data["old"] = pod(old);
        }
        json!({
            "source": "/clusters/prod", "cause": "watch", "apiversion": "v1", "kind": "Pod", "resource": "pods",
            "namespace": "n", "data": data,
        })
    }

    #[test]
    fn explanation_has_one_line_per_handler() {
        let updated = event(Some("1"), "2");
        assert_eq!(explained("updated", &updated), "  out    sent\n  ready  sent\n");
        assert_eq!(
            explained("added", &event(None, "2")),
            "  out    sent\n  ready  not sent: `on` does not include \"added\"\n"
        );
        let mut elsewhere = updated;
        elsewhere["source"] = "/clusters/test".into();
        let why = "`when` is false: cluster == \"prod\"";
        assert_eq!(explained("updated", &elsewhere), format!("  out    sent\n  ready  not sent: {why}\n"));
    }

    #[test]
    fn explanation_takes_changed_by_from_event_or_object() {
        let when = "changed_by != null && changed_by.manager == \"helm\" && changed_by.operation == \"Update\"";
        let config =
            format!("[resources.pods]\nmatch = [\"pods\"]\n[handlers.out]\ntype = \"blackhole\"\nwhen = '{when}'\n");
        let said = |event: &Value| explained_by(&config, "updated", event);
        let refused = format!("  out  not sent: `when` is false: {when}\n");
        let mut updated = event(Some("1"), "2");
        assert_eq!(said(&updated), refused, "nobody is known");
        updated["data"]["changed_by"] = json!({ "manager": "helm", "operation": "Update" });
        assert_eq!(said(&updated), "  out  sent\n");
        updated["data"]["changed_by"]["manager"] = "kubectl-edit".into();
        assert_eq!(said(&updated), refused);
        let mut kept = event(Some("1"), "2");
        kept["data"]["object"]["metadata"]["managedFields"] =
            json!([{ "manager": "helm", "operation": "Update", "time": "2026-11-21T06:40:03Z" }]);
        assert_eq!(said(&kept), "  out  sent\n");
    }

    #[test]
    fn catch_up_excludes_changes_made_during_downtime() {
        let config = |more: &str| {
            format!(
                "[resources.pods]\nmatch = [\"pods\"]\n[handlers.out]\ntype = \"blackhole\"\ncatch_up = false\n{more}\n"
            )
        };
        let mut late = event(Some("1"), "2");
        late["cause"] = "downtime".into();
        let why = "  out  not sent: `catch_up`: changes made while no engine ran are left out\n";
        assert_eq!(explained_by(&config(""), "updated", &late), why);
        let on = "  out  not sent: `on` does not include \"updated\"\n";
        assert_eq!(explained_by(&config("on = [\"added\"]"), "updated", &late), on);
        assert_eq!(explained_by(&config(""), "updated", &event(Some("1"), "2")), "  out  sent\n");
    }

    #[test]
    fn explanation_reports_missing_information() {
        let said = "probably sent: the event has no previous object";
        assert_eq!(explained("updated", &event(None, "2")), format!("  out    {said}\n  ready  {said}\n"));
        let mut bare = event(None, "2");
        bare["data"] = json!({});
        assert_eq!(explained("updated", &bare), "  cannot explain this event: it has no object\n");
        assert_eq!(explained("gap", &bare), "");
    }
}
