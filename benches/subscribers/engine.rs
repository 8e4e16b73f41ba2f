//! The process that is measured: an engine that serves streams.

use std::{io::stdin, sync::mpsc, thread, time::Duration};

use deltabus::{config::Config, engine::Engine, list_watch::kube::ClusterAccess};

use crate::{
    Outcome, open_as_many_files_as_allowed,
    support::measure::{cpu, resident},
};

/// Events that are kept for all subscribers.
pub(crate) const BUFFER_EVENTS: usize = 1_000;
/// Time for an engine to come to rest before its memory is looked at.
const REST: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// As `deltabus run` has it; the buffer is smaller, so that it is full soon.
const CONFIG: &str = r#"
    [resources.settings]
    match = ["configmaps"]

    [handlers.out]
    type = "blackhole"

    [subscribe]
    buffer_events = BUFFER_EVENTS
"#;

/// Syncs, says where it listens, and answers each `look` on stdin once it was at rest for a while: resident bytes, and CPU in
/// nanoseconds.
pub(crate) fn play(url: &str) -> Outcome<()> {
    open_as_many_files_as_allowed()?;
    let mut config = Config::from_toml_str(&CONFIG.replace("BUFFER_EVENTS", &BUFFER_EVENTS.to_string()))?;
    config.http.listen = Some("127.0.0.1:0".parse()?);
    let access = ClusterAccess::without_credentials(url, "bench")?;
    let (lines, heard) = mpsc::channel();
    thread::spawn(move || stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    actix::System::new().block_on(async {
        let engine = Engine::builder().config(config).cluster(access).start().await?;
        engine.wait_for_sync().await;
        println!("{}", engine.addresses().first().ok_or("it listens nowhere")?);
        loop {
            match heard.try_recv().as_deref() {
                Ok("look") => {
                    let spent = cpu();
                    actix_rt::time::sleep(REST).await;
                    println!("{} {}", resident(), spent.as_nanos());
                }
                Ok(line) => return Err(format!("unexpected line {line:?}").into()),
                Err(mpsc::TryRecvError::Empty) => actix_rt::time::sleep(LOOK_EVERY).await,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
    })
}
