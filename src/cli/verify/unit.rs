//! One unit of an engine, held against the API server at the version of its cache.

use std::{cmp::Ordering, collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail};
use deltabus::{
    list_watch::Failure,
    list_watch::kube::raw::{Answer, RawClient},
    object::{IGNORE_ANNOTATION, ResourceType, ResourceVersion},
    scope::Namespaces,
};
use futures_util::future::{self, OptionFuture};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{
    super::engine_client::{EngineClient, message},
    compare::{Comparison, Outcome, Side, State},
};

/// Objects in one page.
const PAGE: &str = "500";

const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const EVENT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// How long the server is listened to for changes that the cache has not seen yet, in seconds.
const LISTEN_SECONDS: &str = "1";

/// Between two looks at a unit that is not synced.
const POLL: Duration = Duration::from_millis(200);

/// How often a version is given up because nobody can list it any more.
const ATTEMPTS: usize = 5;

/// Why nothing can be said of a unit that was replaced meanwhile.
const GONE: &str = "the engine does not watch it any more, or in another way; verify again";

/// How often the server is asked again that refuses for the moment, or cannot be reached.
const RETRIES: u32 = 3;

/// Between two such requests.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A row of `/v1/resources`.
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
    /// Its number; a pattern that waits for its type has none.
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
    /// What of a cluster-wide unit is shown, where that is not all.
    #[serde(default)]
    namespaces: Vec<String>,
}

/// Outcome of the comparison of both lists at this version, or the reason why nothing is proven.
pub(super) type Verdict = anyhow::Result<(ResourceVersion, Outcome)>;

/// Who is held against whom.
pub(super) struct Parties {
    pub(super) engine: EngineClient,
    pub(super) server: RawClient,
    /// How long a unit that is behind may take to catch up.
    pub(super) patience: Duration,
}

/// One page of metadata.
#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    /// `null` where there is none.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

/// 410: the version of a list is gone.
#[derive(Debug, thiserror::Error)]
#[error("the version of the list is gone")]
struct Expired;

impl Unit {
    /// Returns its type.
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

    /// Holds the unit against the server.
    pub(super) async fn verify(&self, parties: &Parties) -> Verdict {
        let deadline = Instant::now() + parties.patience;
        self.wait_until_synced(parties, deadline).await?;
        for _ in 0..ATTEMPTS {
            self.wait_until_caught_up(parties, deadline).await?;
            match self.compare(parties).await {
                Err(error) if error.is::<Expired>() => sleep(POLL).await,
                compared => return compared,
            }
        }
        bail!("{ATTEMPTS} versions of the cache were compacted away before the server could list them")
    }

    /// Waits until the cache is complete; fails with the reason why it is not.
    async fn wait_until_synced(&self, parties: &Parties, deadline: Instant) -> anyhow::Result<()> {
        let mut now = self.clone();
        while !now.synced {
            let error = now.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            if now.state == "forbidden" {
                bail!("the engine may not list or watch it{error}");
            }
            if Instant::now() >= deadline {
                bail!("not synced, {}{error}", now.state);
            }
            sleep(POLL).await;
            now = self.again(parties).await?;
        }
        Ok(())
    }

    /// Waits until the cache has what the server says has changed since the cache's version; fails with the reason why it has
    /// not.
    ///
    /// A version alone does not tell: that of a quiet type stays behind those of others.
    async fn wait_until_caught_up(&self, parties: &Parties, deadline: Instant) -> anyhow::Result<()> {
        let mut now = self.again(parties).await?;
        let Some(last) = self.last_change_since(parties, &now.resource_version).await? else { return Ok(()) };
        while now.resource_version.compare(&last) == Some(Ordering::Less) {
            if Instant::now() >= deadline {
                bail!(
                    "the cache is behind: it is at version {} ({}), the server changed an object in version {last}",
                    now.resource_version,
                    now.state
                );
            }
            sleep(POLL).await;
            now = self.again(parties).await?;
        }
        Ok(())
    }

    /// Asks the engine for the unit's row again; fails where there is none any more.
    async fn again(&self, parties: &Parties) -> anyhow::Result<Self> {
        let rows = resources(&parties.engine).await?.resources;
        rows.into_iter().find(|unit| unit.id == self.id).context(GONE)
    }

    /// Returns the version of the last change that the server tells after `version`; `None` where there is none, or it
    /// does not say.
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

    /// Reads both lists, at the version that the cache has now.
    async fn compare(&self, parties: &Parties) -> Verdict {
        let namespaces = Namespaces::parse(&self.namespaces).context("the engine's namespaces")?;
        let mut comparison = Comparison::default();
        let first = self.cache_list(parties, "").await?;
        let version = first.metadata.resource_version.clone();
        let (mut cached, mut served) = (Some(first), Some(self.server_list(parties, &version, "").await?));
        while cached.is_some() || served.is_some() {
            for (side, page) in [(Side::Cache, &mut cached), (Side::Server, &mut served)] {
                for Item { metadata } in page.iter_mut().flat_map(|page| page.items.take().unwrap_or_default()) {
                    if side == Side::Cache || metadata.is_shown(&namespaces) {
                        let (key, state) = metadata.split();
                        comparison.see(side, key, state);
                    }
                }
            }
            let from_cache = next_token(cached.as_ref()).map(|next| self.cache_list(parties, next));
            let from_server = next_token(served.as_ref()).map(|next| self.server_list(parties, &version, next));
            let next = future::join(OptionFuture::from(from_cache), OptionFuture::from(from_server)).await;
            (cached, served) = (next.0.transpose()?, next.1.transpose()?);
        }
        Ok((ResourceVersion::from(&*version), comparison.finish()))
    }

    async fn cache_list(&self, parties: &Parties, next: &str) -> anyhow::Result<Page> {
        let path = self.cache_path(&[("limit", PAGE), ("continue", next)]);
        let answer = parties.engine.ask(&path, LIST).await?;
        if answer.code == 404 {
            bail!(GONE);
        }
        page("the engine", &path, answer)
    }

    async fn server_list(&self, parties: &Parties, version: &str, next: &str) -> anyhow::Result<Page> {
        let at = [("resourceVersion", version), ("resourceVersionMatch", "Exact")];
        // The token has the version.
        let at = if next.is_empty() { &at[..] } else { &[("continue", next)] };
        let path = self.server_path(&[&[("limit", PAGE)], at].concat());
        page("the API server", &path, ask_server(parties, &path, LIST).await?)
    }

    fn cache_path(&self, query: &[(&str, &str)]) -> String {
        let unit = self.id.unwrap_or_default().to_string();
        self.path(&[&[("unit", &*unit)], query].concat())
    }

    fn server_path(&self, query: &[(&str, &str)]) -> String {
        let selectors = [("labelSelector", &*self.label_selector), ("fieldSelector", &*self.field_selector)];
        self.path(&[&selectors, query].concat())
    }

    /// Returns a path of the unit's collection; what is empty is left out of the query.
    fn path(&self, query: &[(&str, &str)]) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(query.iter().filter(|(_, value)| !value.is_empty()));
        format!("{}?{}", self.resource().path(self.namespace.as_deref()), text.finish().replace('+', "%20"))
    }
}

impl Metadata {
    /// Returns whether an object that the server has is to be cached.
    fn is_shown(&self, namespaces: &Namespaces) -> bool {
        let opts_out = self.annotations.get(IGNORE_ANNOTATION).is_some_and(|value| value == "true");
        !opts_out && (self.namespace.is_empty() || namespaces.matches(&self.namespace))
    }

    fn split(self) -> (Box<str>, State) {
        let Self { namespace, name, uid, resource_version, .. } = self;
        let key = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
        (key.into(), State { uid: uid.into(), resource_version: resource_version.into() })
    }
}

/// Answer of `/v1/resources`.
#[derive(Deserialize)]
pub(super) struct Resources {
    /// URL of the API server; an older engine does not tell.
    pub(super) server: Option<String>,
    pub(super) resources: Vec<Unit>,
}

/// Asks an engine for its `/v1/resources`.
pub(super) async fn resources(engine: &EngineClient) -> anyhow::Result<Resources> {
    engine.get_json("/v1/resources").await
}

/// Asks the API server, and again where it is too busy or was not reached.
async fn ask_server(parties: &Parties, path: &str, accept: &str) -> anyhow::Result<Answer> {
    let mut tries = 0;
    loop {
        let answer = parties.server.get(path, accept, ANSWER_TIMEOUT).await;
        let may_mend = match &answer {
            Ok(answer) => matches!(answer.code, 429 | 500..=504),
            Err(failure) => matches!(failure, Failure::Refused | Failure::Disconnected(_)),
        };
        if !may_mend || tries == RETRIES {
            return answer.context("failed to ask the API server");
        }
        tries += 1;
        sleep(RETRY_AFTER).await;
    }
}

fn next_token(page: Option<&Page>) -> Option<&str> {
    page.map(|page| &*page.metadata.next).filter(|next| !next.is_empty())
}

fn page(who: &str, path: &str, answer: Answer) -> anyhow::Result<Page> {
    let Answer { code, body, .. } = answer;
    match code {
        200 => serde_json::from_slice(&body).with_context(|| format!("unexpected answer of {who} to {path}")),
        410 => Err(Expired.into()),
        code => bail!("{who} answered {}", message(code, &body)),
    }
}
