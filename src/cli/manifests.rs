//! `deltabus manifests`: Kubernetes objects that install a configuration in a cluster, as YAML.

mod objects;
mod site;
mod values;

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
};

use clap::{Args, ValueEnum};

use super::{
    ConfigArgs,
    rbac::{Extent, Grants},
    report, run,
    server::ServerArgs,
    yaml,
};
use site::Site;
use values::Values;

/// Prints the Kubernetes objects that install this configuration in a cluster with the least rights, as YAML.
///
/// The objects are a namespace, a service account with the roles that `deltabus rbac` prints, the configuration, a volume
/// for files that the configuration writes, a service, a network policy and a stateful set with one pod. After a change to
/// the configuration, run this command again; the pod applies the change without a restart.
///
/// The command asks the API server which types the configuration selects and how many objects there are. The output contains
/// no secrets. If the configuration reads the file /run/secrets/NAME/KEY, create a Secret NAME with the key KEY.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManifestsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Namespace of the objects.
    #[arg(short, long, default_value = "deltabus", value_parser = label)]
    namespace: String,
    /// Name of the objects.
    #[arg(long, default_value = "deltabus", value_parser = label)]
    name: String,
    /// Image of the pod. deploy/Dockerfile builds it.
    #[arg(long, value_name = "IMAGE", default_value = DEFAULT_IMAGE)]
    image: String,
    /// Adds a `ServiceMonitor`, a `PrometheusRule` and dashboards, for clusters with the Prometheus operator and Grafana.
    #[arg(long)]
    monitoring: bool,
    /// Grants whole groups for `*.GROUP`, and everything for `*`, so that future types are allowed too.
    #[arg(long)]
    wildcard: bool,
    /// Lets handlers of type `exec` run programs. The image has no shell and no other program: docs/install.md shows how to add
    /// them.
    #[arg(long)]
    allow_exec: bool,
    /// YAML file with values of the Helm chart that the configuration does not determine, such as `nodeSelector`, `tolerations`,
    /// `storageClass`, `podLabels` and `extraVolumes`. deploy/helm/deltabus/values.yaml lists them.
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Name of the image that deploy/Dockerfile builds for this version.
const DEFAULT_IMAGE: &str = concat!("deltabus:", env!("CARGO_PKG_VERSION"));

const EXAMPLES: &str = "\
Examples:

  deltabus manifests -c config.toml | kubectl apply -f -
  deltabus manifests -c config.toml -n watch --image registry.example.com/deltabus:1 --monitoring
  deltabus manifests -c config.toml --values site.yaml | kubectl apply -f -
  deltabus manifests -c config.toml -o values > values.yaml
  helm install deltabus deploy/helm/deltabus -f values.yaml";

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Kubernetes objects, for `kubectl apply -f -`.
    #[default]
    Yaml,
    /// Values of the Helm chart in deploy/helm/deltabus, which renders the same objects.
    Values,
}

/// Parses a name that is valid for any Kubernetes object: a label of RFC 1123.
fn label(text: &str) -> Result<String, &'static str> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = text.chars().all(is_inner) && !text.starts_with('-') && !text.ends_with('-');
    // Kubernetes appends up to eleven characters to name the revisions of a stateful set.
    let name = Some(text).filter(|text| is_label && (1..=52).contains(&text.len())).map(str::to_owned);
    name.ok_or("expected up to 52 lower-case letters, digits and `-`, such as \"deltabus\"")
}

/// Prints the objects or the Helm values.
pub(crate) async fn manifests(args: &ManifestsArgs) -> anyhow::Result<()> {
    let (loaded, files) = args.config.load_for_elsewhere()?;
    report::warnings(&loaded.warnings);
    run::refuse_programs(&loaded, args.allow_exec)?;
    let site = args.values.as_deref().map_or_else(|| Ok(Site::default()), Site::read)?;
    let server = ServerArgs::of(&loaded.config.kube, "").await?;
    let (catalog, selection) = server.select(&loaded.config).await?;
    let extent = Extent { wildcard: args.wildcard, namespaces: &[] };
    let grants = Grants::of(&loaded.config, &catalog, &selection, &extent);
    let entries = &loaded.config.resources;
    let types = selection.owned.iter().map(|owned| (&owned.resource, entries.get(&owned.entry)));
    let objects = server.count(&types.collect::<Vec<_>>()).await;
    let values = Values::of(&loaded, files, &server, objects, grants.rules(), args, site)?;
    let mut remarks = grants.remarks;
    remarks.extend(values.remarks(&args.name, &args.namespace, &loaded.config));
    if args.image == DEFAULT_IMAGE && args.output == Output::Yaml {
        remarks.push(format!(
            "The image {DEFAULT_IMAGE} is in no public registry: build it with deploy/Dockerfile, push it, and name it with --image."
        ));
    }
    if loaded.config.cluster.name.is_none() {
        remarks.push(
            "[cluster] name is not set: events name the cluster after your context, as in pod.toml of the ConfigMap. Another \
             user's context may have another name."
                .to_owned(),
        );
    }
    let is_monitored = catalog.types().iter().any(|served| served.resource.group == "monitoring.coreos.com");
    if args.monitoring && !is_monitored {
        remarks.push(
            "This cluster has no Prometheus operator: it refuses ServiceMonitor and PrometheusRule until one is \
             installed. docs/install.md describes monitoring without it."
                .to_owned(),
        );
    }
    let text = match args.output {
        Output::Yaml => yaml::documents(&remarks, &objects::objects(&values, &args.name, &args.namespace)),
        Output::Values => yaml::documents(&remarks, &[serde_json::to_value(&values)?]),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    if !io::stdout().is_terminal() {
        for remark in &remarks {
            report::note(remark);
        }
    }
    Ok(())
}
