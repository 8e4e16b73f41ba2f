//! The simulated API server, in a process of its own.

use std::{error::Error, io::stdin};

use deltabus::simulator::{HistoryLimits, Simulator, SimulatorOptions, Workload};

use crate::support::process::Player;

/// The role of [`simulator`].
pub(crate) const SIMULATOR: &str = "simulator";

/// The simulated API server.
pub(crate) struct Server {
    player: Player,
    url: String,
}

impl Server {
    /// Starts it with pods.
    pub(crate) fn start(pods: usize, diverse: bool) -> Result<Self, Box<dyn Error>> {
        let mut player = Player::start(SIMULATOR, &[pods.to_string(), diverse.to_string()])?;
        let url = player.line()?;
        Ok(Self { player, url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Makes it update so many pods, as fast as it can; returns once it has.
    pub(crate) fn churn(&mut self, events: usize) -> Result<(), Box<dyn Error>> {
        self.begin_churn(events)?;
        self.end_churn()
    }

    /// The same, but returns at once.
    pub(crate) fn begin_churn(&mut self, events: usize) -> Result<(), Box<dyn Error>> {
        self.player.tell(&events.to_string())
    }

    /// Returns once it has updated what [`Self::begin_churn`] told it to.
    pub(crate) fn end_churn(&mut self) -> Result<(), Box<dyn Error>> {
        self.player.line().map(drop)
    }
}

/// Plays the server: says its address, then updates as many pods as it is told, and says when that is done.
pub(crate) fn simulator(pods: usize, diverse: bool) -> Result<(), Box<dyn Error>> {
    let history = HistoryLimits { changes: usize::MAX, bytes: usize::MAX };
    let simulator = Simulator::start(SimulatorOptions { history, ..SimulatorOptions::default() })?;
    let mut workload = Workload::new(1);
    workload.load(simulator.store(), pods, diverse)?;
    println!("{}", simulator.url());
    for line in stdin().lines() {
        workload.churn(simulator.store(), line?.trim().parse()?)?;
        println!("done");
    }
    Ok(())
}
