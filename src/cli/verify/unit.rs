//! Comparison of one unit of an engine with the API server, at the version of the cache.

use std::{cmp::Ordering, collections::BTreeMap, time::Duration};

use crate::{
    list_watch::Failure,
    list_watch::kube::raw::{Answer, RawClient},
    object::{IGNORE_ANNOTATION, ResourceType, ResourceVersion},
    scope::Namespaces,
};
use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{
    super::engine_client::{EngineClient, message},
    compare::{Outcome, State, compare},
};

/// Number of objects in one page.
const PAGE: &str = "500";

const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const EVENT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Time limit for one response.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Number of seconds for which a watch waits for changes that the cache has not seen yet.
const LISTEN_SECONDS: &str = "1";

/// Interval between two checks of a unit that is not synced or is behind.
const POLL: Duration = Duration::from_millis(200);

/// Maximum number of attempts to compare a unit. If the server has compacted the version, the next attempt uses a newer version.
const ATTEMPTS: usize = 5;

/// Maximum number of retries of a request that the server refuses temporarily, or that does not reach the server.
const RETRIES: u32 = 3;

/// Delay before each retry of a request to the API server.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Row of `/v1/resources`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unit {
    /// Name of the `[resources.*]` entry.
    pub(super) name: String,
    api_version: String,
    kind: String,
    plural: String,
    pub(super) state: String,
    synced: bool,
    last_error: Option<String>,
    /// Number of the unit; `None` while the server does not serve the pattern's type.
    #[serde(rename = "unit")]
    pub(super) id: Option<u32>,
    resource_version: ResourceVersion,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    label_selector: String,
    #[serde(default)]
    field_selector: String,
    /// Patterns of the namespaces that a cluster-wide unit shows; empty if the unit shows all namespaces.
    #[serde(default)]
    namespaces: Vec<String>,
    /// Set if objects with the annotation are hidden. Engines up to 0.2 always hid them, and do not say so.
    #[serde(default = "hidden_by_earlier_engines")]
    ignore_annotation: bool,
}

fn hidden_by_earlier_engines() -> bool {
    true
}

/// Version at which both lists were compared, and the outcome; or the reason why they could not be compared.
pub(super) type Verdict = anyhow::Result<(ResourceVersion, Outcome)>;

/// Both sides of the comparison.
pub(super) struct Parties {
    pub(super) engine: EngineClient,
    pub(super) server: RawClient,
    /// Time for a unit that is behind to catch up.
    pub(super) patience: Duration,
}

/// Page of metadata.
#[derive(Deserialize)]
struct Page {
    metadata: Metadata,
    /// Metadata of the objects. An empty page may contain `null` here.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

/// Metadata of an object, or of a page.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
    #[serde(rename = "continue")]
    next: String,
}

/// Status 410: the version of a list was compacted.
#[derive(Debug, thiserror::Error)]
#[error("the API server has compacted the version of the list")]
struct Expired;

/// The engine has replaced or removed the unit during the verification.
#[derive(Debug, thiserror::Error)]
#[error("the engine has replaced or removed this unit; verify again")]
struct Gone;

/// Status 404 of the API server: the definition of the type was removed.
#[derive(Debug, thiserror::Error)]
#[error("the API server does not serve the type")]
struct NotServed;

impl Unit {
    /// Returns the type of the unit.
    pub(super) fn resource(&self) -> ResourceType {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        ResourceType {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
            namespaced: self.namespaced,
        }
    }

    /// Compares the unit with the server, or its successor if the engine replaces the unit meanwhile. Returns `None` if the engine
    /// no longer watches the type.
    pub(super) async fn verify(self, parties: &Parties) -> Option<(Self, Verdict)> {
        let deadline = Instant::now() + parties.patience;
        let mut unit = self;
        loop {
            let verdict = unit.verify_until(parties, deadline).await;
            let is_gone = verdict.as_ref().is_err_and(anyhow::Error::is::<Gone>);
            if !is_gone || Instant::now() >= deadline {
                return Some((unit, verdict));
            }
            match unit.successor(parties).await {
                Ok(successor) => unit = successor?,
                Err(error) => return Some((unit, Err(error))),
            }
        }
    }

    async fn verify_until(&self, parties: &Parties, deadline: Instant) -> Verdict {
        self.wait_until_synced(parties, deadline).await?;
        let mut attempts = 0;
        loop {
            self.wait_until_caught_up(parties, deadline).await?;
            match self.compare(parties).await {
                Err(error) if error.is::<Expired>() => {
                    attempts += 1;
                    if attempts == ATTEMPTS {
                        bail!("{ATTEMPTS} versions of the cache were compacted before the server could list them");
                    }
                }
                // the engine notices soon, and removes the unit
                Err(error) if error.is::<NotServed>() && Instant::now() < deadline => {}
                compared => return compared,
            }
            sleep(POLL).await;
        }
    }

    /// Returns the unit that replaces this one. `None` if the engine no longer watches the type. Fails if it watches the type in
    /// other namespaces than before.
    async fn successor(&self, parties: &Parties) -> anyhow::Result<Option<Self>> {
        let Resources { resources, .. } = parties.engine.get_json("/v1/resources").await?;
        let is_same = |unit: &Self| unit.name == self.name && unit.resource() == self.resource() && unit.id.is_some();
        let same: Vec<_> = resources.into_iter().filter(is_same).collect();
        if same.is_empty() {
            return Ok(None);
        }
        Ok(Some(same.into_iter().find(|unit| unit.namespace == self.namespace).ok_or(Gone)?))
    }

    /// Waits until the cache is complete. At the deadline, or if the engine lacks rights, fails with the reason.
    async fn wait_until_synced(&self, parties: &Parties, deadline: Instant) -> anyhow::Result<()> {
        let mut now = self.clone();
        while !now.synced {
            let error = now.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            if now.state == "forbidden" {
                bail!("the engine is not allowed to list or watch the type{error}");
            }
            if Instant::now() >= deadline {
                bail!("not synced, {}{error}", now.state);
            }
            sleep(POLL).await;
            now = self.again(parties).await?;
        }
        Ok(())
    }

    /// Asks the server for the changes after the cache's version, and waits until the cache contains them. Fails if the cache is
    /// still behind at the deadline.
    ///
    /// Comparing versions is not enough: the version of a quiet type stays behind those of other types.
    async fn wait_until_caught_up(&self, parties: &Parties, deadline: Instant) -> anyhow::Result<()> {
        let mut now = self.again(parties).await?;
        let Some(last) = self.last_change_since(parties, &now.resource_version).await? else { return Ok(()) };
        while now.resource_version.compare(&last) == Some(Ordering::Less) {
            if Instant::now() >= deadline {
                bail!(
                    "the cache is behind: it is at version {} ({}), but the server changed an object in version {last}",
                    now.resource_version,
                    now.state
                );
            }
            sleep(POLL).await;
            now = self.again(parties).await?;
        }
        Ok(())
    }

    /// Reads the row of the unit again; fails if it no longer exists.
    async fn again(&self, parties: &Parties) -> anyhow::Result<Self> {
        let now: Resources = parties.engine.get_json("/v1/resources").await?;
        Ok(now.resources.into_iter().find(|unit| unit.id == self.id).ok_or(Gone)?)
    }

    /// Returns the version of the last change that the server reports after `version`; `None` if it reports none.
    async fn last_change_since(
        &self,
        parties: &Parties,
        version: &ResourceVersion,
    ) -> anyhow::Result<Option<ResourceVersion>> {
        #[derive(Deserialize)]
        struct Event {
            #[serde(rename = "type")]
            kind: String,
            object: Item,
        }
        let path = self.server_path(&[
            ("resourceVersion", version.as_str()),
            ("watch", "true"),
            ("timeoutSeconds", LISTEN_SECONDS),
        ]);
        let Answer { code, body, .. } = ask_server(parties, &path, EVENT).await?;
        if code != 200 {
            return Ok(None);
        }
        let lines = body.split(|byte| *byte == b'\n').rev();
        let mut events = lines.filter_map(|line| serde_json::from_slice::<Event>(line).ok());
        let change = events.find(|event| matches!(&*event.kind, "ADDED" | "MODIFIED" | "DELETED"));
        Ok(change.map(|event| ResourceVersion::from(&*event.object.metadata.resource_version)))
    }

    /// Compares both lists at the current version of the cache.
    async fn compare(&self, parties: &Parties) -> Verdict {
        let namespaces = Namespaces::parse(&self.namespaces).context("invalid namespaces of the engine")?;
        let unit = self.id.unwrap_or_default().to_string();
        let cache_page = async |next: &str| {
            let path = self.path(&[("unit", &*unit), ("limit", PAGE), ("continue", next)]);
            match parties.engine.ask(&path, LIST).await? {
                Answer { code: 404, .. } => Err(Gone.into()),
                answer => page("the engine", &path, answer),
            }
        };
        let (version, cached) = list(cache_page, |_| true).await?;
        let server_page = async |next: &str| {
            let at = [("resourceVersion", &*version), ("resourceVersionMatch", "Exact")];
            // A continue token contains the version, so a further page is requested without `resourceVersion`.
            let at = if next.is_empty() { &at[..] } else { &[("continue", next)] };
            let path = self.server_path(&[&[("limit", PAGE)], at].concat());
            match ask_server(parties, &path, LIST).await? {
                Answer { code: 404, .. } => Err(NotServed.into()),
                answer => page("the API server", &path, answer),
            }
        };
        let (_, served) = list(server_page, |object| object.is_shown(&namespaces, self.ignore_annotation)).await?;
        Ok((ResourceVersion::from(&*version), compare(cached, served)))
    }

    fn server_path(&self, query: &[(&str, &str)]) -> String {
        let selectors = [("labelSelector", &*self.label_selector), ("fieldSelector", &*self.field_selector)];
        self.path(&[&selectors, query].concat())
    }

    /// Returns the path of the unit's collection, with a query. Leaves out parameters whose value is empty.
    fn path(&self, query: &[(&str, &str)]) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(query.iter().filter(|(_, value)| !value.is_empty()));
        format!("{}?{}", self.resource().path(self.namespace.as_deref()), text.finish().replace('+', "%20"))
    }
}

impl Metadata {
    /// Returns true if an object of the server belongs in the cache.
    fn is_shown(&self, namespaces: &Namespaces, heeds_opt_out: bool) -> bool {
        let opts_out = heeds_opt_out && self.annotations.get(IGNORE_ANNOTATION).is_some_and(|value| value == "true");
        !opts_out && (self.namespace.is_empty() || namespaces.matches(&self.namespace))
    }

    fn split(self) -> (Box<str>, State) {
        let Self { namespace, name, uid, resource_version, .. } = self;
        let key = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
        (key.into(), State { uid: uid.into(), resource_version: resource_version.into() })
    }
}

/// Response of `/v1/resources`.
#[derive(Deserialize)]
pub(super) struct Resources {
    /// URL of the API server; older engines do not report it.
    pub(super) server: Option<String>,
    pub(super) resources: Vec<Unit>,
}

/// Reads all pages of a list. Returns the version of the list, and the key and the state of each object that `is_shown` selects.
async fn list(
    page: impl AsyncFn(&str) -> anyhow::Result<Page>,
    is_shown: impl Fn(&Metadata) -> bool,
) -> anyhow::Result<(String, Vec<(Box<str>, State)>)> {
    let Page { metadata: Metadata { resource_version, mut next, .. }, mut items } = page("").await?;
    let mut objects = Vec::new();
    loop {
        let shown = items.unwrap_or_default().into_iter().map(|item| item.metadata).filter(&is_shown);
        objects.extend(shown.map(Metadata::split));
        if next.is_empty() {
            return Ok((resource_version, objects));
        }
        let page = page(&next).await?;
        (next, items) = (page.metadata.next, page.items);
    }
}

/// Sends a request to the API server; retries if the server is busy or was not reached.
async fn ask_server(parties: &Parties, path: &str, accept: &str) -> anyhow::Result<Answer> {
    let mut tries = 0;
    loop {
        let answer = parties.server.get(path, accept, ANSWER_TIMEOUT).await;
        let may_mend = match &answer {
            Ok(answer) => matches!(answer.code, 429 | 500..=504),
            Err(failure) => matches!(failure, Failure::Refused | Failure::Disconnected(_)),
        };
        if !may_mend || tries == RETRIES {
            return answer.context("the request to the API server failed");
        }
        tries += 1;
        sleep(RETRY_AFTER).await;
    }
}

fn page(who: &str, path: &str, answer: Answer) -> anyhow::Result<Page> {
    let Answer { code, body, .. } = answer;
    match code {
        200 => serde_json::from_slice(&body).with_context(|| format!("unexpected answer from {who} to {path}")),
        410 => Err(Expired.into()),
        code => bail!("{who} answered {}", message(code, &body)),
    }
}
