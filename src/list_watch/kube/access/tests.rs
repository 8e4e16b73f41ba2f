use super::*;

const KUBECONFIG: &str = r"
apiVersion: v1
kind: Config
current-context: dev
contexts:
- {name: dev, context: {cluster: c, user: u}}
- {name: prod, context: {cluster: p, user: u}}
- {name: odd, context: {cluster: o}}
clusters:
- {name: c, cluster: {server: 'http://127.0.0.1:8080/'}}
- {name: p, cluster: {server: 'https://user:secret@prod.example:6443/k8s/'}}
- {name: o, cluster: {server: 'localhost'}}
users:
- {name: u, user: {token: t0ps3cret}}
";

fn home() -> (tempfile::TempDir, Surroundings) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(".kube")).unwrap();
    std::fs::write(dir.path().join(".kube/config"), KUBECONFIG).unwrap();
    let surroundings = Surroundings { home: Some(dir.path().into()), ..Surroundings::default() };
    (dir, surroundings)
}

fn options(kubeconfig: &str, context: &str) -> KubeOptions {
    KubeOptions { kubeconfig: kubeconfig.into(), context: context.into() }
}

#[test]
fn cluster_access_follows_kubectl_order() {
    let (dir, at_home) = home();
    let other = dir.path().join("other");
    std::fs::write(&other, KUBECONFIG).unwrap();
    let in_pod = Surroundings { in_pod: true, ..at_home.clone() };
    let with_env = Surroundings { kubeconfig: Some(other.clone().into()), ..in_pod.clone() };
    let default_file = Source::Files(vec![dir.path().join(".kube/config")]);

    assert_eq!(find(&options("/x", ""), &with_env).unwrap(), Source::Files(vec!["/x".into()]));
    assert_eq!(find(&options("~/other", ""), &with_env).unwrap(), Source::Files(vec![other.clone()]));
    assert_eq!(find(&options("", ""), &with_env).unwrap(), Source::Files(vec![other.clone()]));
    assert_eq!(find(&options("", ""), &in_pod).unwrap(), Source::ServiceAccount);
    assert_eq!(find(&options("", "dev"), &in_pod).unwrap(), default_file);
    assert_eq!(find(&options("", ""), &at_home).unwrap(), default_file);
    let list = env::join_paths([dir.path().join("missing"), other.clone()]).unwrap();
    let with_list = Surroundings { kubeconfig: Some(list), ..at_home };
    assert_eq!(find(&options("", ""), &with_list).unwrap(), Source::Files(vec![other]));
}

#[test]
fn missing_access_names_every_searched_location() {
    let dir = tempfile::tempdir().unwrap();
    let surroundings =
        Surroundings { home: Some(dir.path().into()), kubeconfig: Some("/missing".into()), ..Surroundings::default() };
    let error = ClusterAccess::load_in(&KubeOptions::default(), &surroundings).unwrap_err().to_string();
    for part in
        ["KUBECONFIG (/missing does not exist)", "not in a pod", ".kube/config (does not exist)", "[kube] kubeconfig"]
    {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn context_names_cluster_and_plain_http_works() {
    let (_dir, at_home) = home();
    let access = ClusterAccess::load_in(&KubeOptions::default(), &at_home).unwrap();
    assert_eq!((access.cluster_name(), &*access.server_url()), (Some("dev"), "http://127.0.0.1:8080"));
    assert!(!access.config.default_retry && access.config.disable_compression);
    assert_eq!(access.config.read_timeout, None);
    let access = ClusterAccess::load_in(&options("", "prod"), &at_home).unwrap();
    assert_eq!((access.cluster_name(), &*access.server_url()), (Some("prod"), "https://prod.example:6443/k8s"));
    let shown = format!("{access:?}");
    assert!(!shown.contains("secret") && !shown.contains("t0ps"), "{shown}");
}

#[test]
fn invalid_kubeconfig_is_named_with_expectation() {
    let (dir, at_home) = home();
    let load = |options: &KubeOptions| ClusterAccess::load_in(options, &at_home).unwrap_err().to_string();
    assert!(load(&options("", "prdo")).contains("expected one of: dev, prod, odd"));
    assert!(load(&options("", "odd")).contains("expected http://"));
    assert!(load(&options("/missing", "")).contains("/missing"));
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    assert!(load(&options(empty.to_str().unwrap(), "")).contains("no current-context"));
    std::fs::write(&empty, "a: [").unwrap();
    assert!(load(&options(empty.to_str().unwrap(), "")).contains("failed to use kubeconfig"));
}

#[test]
fn no_proxy_matches_hosts_and_domains() {
    for (host, no_proxy, expected) in [
        ("127.0.0.1", "", true),
        ("[::1]", "", true),
        ("localhost", "", true),
        ("api.example.com", "", false),
        ("api.example.com", "a, api.example.com", true),
        ("api.example.com", ".example.com", true),
        ("api.example.com", "example.com", true),
        ("badexample.com", "example.com", false),
        ("api.example.com", "*", true),
    ] {
        assert_eq!(is_direct(host, no_proxy), expected, "{host} {no_proxy:?}");
    }
}
