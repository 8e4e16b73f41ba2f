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

#[test]
fn first_file_that_sets_a_value_wins() {
    let (dir, mut at_home) = home();
    let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
    std::fs::write(&first, "kind: ''\ncurrent-context: ''\nusers: [{name: u, user: {token: mine}}]\n").unwrap();
    std::fs::write(&second, KUBECONFIG).unwrap();
    at_home.kubeconfig = Some(env::join_paths([&first, &second]).unwrap());
    let access = ClusterAccess::load_in(&KubeOptions::default(), &at_home).unwrap();
    assert_eq!(access.cluster_name(), Some("dev"));
    std::fs::write(&first, "current-context: prod\n").unwrap();
    let access = ClusterAccess::load_in(&KubeOptions::default(), &at_home).unwrap();
    assert_eq!(access.cluster_name(), Some("prod"));
}

#[test]
fn cluster_with_contradicting_or_unsupported_settings_is_refused() {
    let (dir, at_home) = home();
    let file = dir.path().join("other");
    let load = |cluster: &str| {
        let config = KUBECONFIG.replace("server: 'http://127.0.0.1:8080/'", cluster);
        std::fs::write(&file, config).unwrap();
        ClusterAccess::load_in(&options(file.to_str().unwrap(), ""), &at_home)
    };
    let refused = |cluster: &str| load(cluster).unwrap_err().to_string();
    let both = refused("server: 'https://x', certificate-authority-data: YQ==, insecure-skip-tls-verify: true");
    assert!(both.contains("cluster \"c\": certificate-authority together with insecure-skip-tls-verify"), "{both}");
    std::fs::write(dir.path().join("ca.crt"), "").unwrap();
    let both = refused("server: 'https://x', certificate-authority: ca.crt, insecure-skip-tls-verify: true");
    assert!(both.contains("certificate-authority together with"), "{both}");
    load("server: 'https://x', certificate-authority-data: '', insecure-skip-tls-verify: true").unwrap();
    let proxy = refused("server: 'http://127.0.0.1:1', proxy-url: 'https://me:t0ps3cret@proxy'");
    assert!(proxy.contains("unsupported proxy https:// in proxy-url") && !proxy.contains("t0ps"), "{proxy}");
    let missing = refused("server: 'https://x', certificate-authority: missing");
    let path = dir.path().join("missing");
    assert!(missing.contains(&format!("cannot read certificate-authority {}: No such", path.display())), "{missing}");
}

#[test]
fn unreadable_kubeconfig_is_reported_without_content() {
    let (dir, at_home) = home();
    let file = dir.path().join("other");
    for broken in [
        KUBECONFIG.replace("users:\n", "users:\n  odd\n"),
        KUBECONFIG.replace("{token: t0ps3cret}", "t0ps3cret"),
        KUBECONFIG.replace("{token: t0ps3cret}", "{token: [t0ps3cret]}"),
    ] {
        std::fs::write(&file, broken).unwrap();
        let error = ClusterAccess::load_in(&options(file.to_str().unwrap(), ""), &at_home).unwrap_err().to_string();
        assert!(error.contains("it is not a kubeconfig in YAML, see line 1") && !error.contains("t0ps"), "{error}");
    }
}

#[test]
fn proxy_of_environment_is_for_remote_https_only() {
    let (_dir, at_home) = home();
    let direct = Surroundings { no_proxy: "prod.example".to_owned(), ..at_home.clone() };
    let route = |surroundings: &Surroundings, server: &str| {
        let surroundings = Surroundings { proxy: Some("proxy:3128".to_owned()), ..surroundings.clone() };
        surroundings.route(&server.parse().unwrap()).unwrap()
    };
    let proxied = Route::of_kubeconfig("http://proxy:3128").unwrap();
    assert_eq!(route(&at_home, "https://prod.example:6443"), proxied);
    assert_eq!(route(&at_home, "http://prod.example"), Route::Direct);
    assert_eq!(route(&at_home, "https://127.0.0.1:6443"), Route::Direct);
    assert_eq!(route(&direct, "https://prod.example:6443"), Route::Direct);
}
