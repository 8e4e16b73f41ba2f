//! Version, commit, features and target of this build, for metrics and users.

/// Version of the crate.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of the sources, from the environment variable `DELTABUS_COMMIT` at compile time; otherwise `unknown`.
pub(crate) const COMMIT: &str = match option_env!("DELTABUS_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Cargo features of this build that are not default features.
pub(crate) const FEATURES: &[&str] = match (cfg!(feature = "kafka"), cfg!(feature = "otlp")) {
    (true, true) => &["kafka", "otlp"],
    (true, false) => &["kafka"],
    (false, true) => &["otlp"],
    (false, false) => &[],
};

/// Returns an error text about a Cargo feature that this build lacks. The text has no subject: the caller puts the name of an
/// option before it.
pub(crate) fn lacking(feature: &str) -> String {
    format!(
        "needs a build with the feature `{feature}`: build with `cargo build --release --features {feature}`, or \
         add it to the features of the dependency"
    )
}

/// Returns the architecture, the operating system, and the C library if it is glibc or musl: `x86_64-linux-gnu`.
pub(crate) fn target() -> String {
    let platform = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    if cfg!(target_env = "musl") {
        platform + "-musl"
    } else if cfg!(target_env = "gnu") {
        platform + "-gnu"
    } else {
        platform
    }
}
