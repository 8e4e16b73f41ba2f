//! A webhook that hangs, then answers 500, then 429, then recovers, while objects go on changing: what that costs in
//! memory, what another handler feels of it, and what arrives in the end.
//!
//! Each run has new processes, all of them this program: one coordinates, one is the simulated API server, one the
//! engine, two are the servers that its webhooks call. Per round and per kind of buffer there is an undisturbed run and
//! a disturbed one, one after the other. It takes `--events`, `--objects`, `--rate` (changes a second) and `--rounds`;
//! `--sample-size 10` or less is a tenth of the objects and events.

mod cluster;
mod engine;
#[path = "../support/flags.rs"]
mod flags;
mod run;
mod sink;
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::{env, error::Error, time::SystemTime};

use self::{
    flags::number,
    run::{Run, Scene},
    support::process::{ROLE_FLAG, is_asked_for, sample_size},
};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, role, rest @ ..] = &args[..]
        && flag == ROLE_FLAG
    {
        return play(role, rest);
    }
    if args.iter().any(|arg| arg == "--test") || !is_asked_for("outage", &args) {
        return Ok(());
    }
    let tenth = if sample_size(&args).is_some_and(|size| size <= 10) { 10 } else { 1 };
    let scene = Scene {
        objects: number(&args, "--objects", 50_000 / tenth)?,
        events: number(&args, "--events", 1_000_000 / tenth)?,
        rate: number(&args, "--rate", 15_000)?,
    };
    let rounds = number(&args, "--rounds", 1)?;
    println!(
        "outage: {} config maps of 1 KB, then {} changes at {}/s, of which one in a hundred is a creation or a deletion",
        scene.objects, scene.events, scene.rate
    );
    table::head();
    for _ in 0..rounds {
        for stored in [false, true] {
            let undisturbed = Run::of(scene, stored, false)?;
            table::line(&undisturbed, None);
            table::line(&Run::of(scene, stored, true)?, Some(&undisturbed));
        }
    }
    Ok(())
}

fn play(role: &str, args: &[String]) -> Outcome<()> {
    match (role, args) {
        ("simulator", [objects]) => cluster::play(objects.parse()?),
        ("engine", [url, hook, other, dir]) => engine::play(url, hook, other, dir),
        ("sink", []) => sink::play(),
        _ => Err(format!("unexpected role {role:?}").into()),
    }
}

/// Microseconds since the Unix epoch: a clock that all processes share.
pub(crate) fn micros() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]
    let now = SystemTime::now();
    now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
