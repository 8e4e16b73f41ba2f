//! The other processes of this bench, by what they do.

use std::{error::Error, time::Duration};

use crate::{measure::Phase, support::process::Player};

/// The simulated API server.
pub(crate) struct Server {
    player: Player,
    url: String,
}

impl Server {
    /// Starts it with pods.
    pub(crate) fn start(pods: usize, diverse: bool) -> Result<Self, Box<dyn Error>> {
        let mut player = Player::start("simulator", &[pods.to_string(), diverse.to_string()])?;
        let url = player.line()?;
        Ok(Self { player, url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Makes it update so many pods, as fast as it can; returns once it has.
    pub(crate) fn churn(&mut self, events: usize) -> Result<(), Box<dyn Error>> {
        self.player.tell(&events.to_string())?;
        self.player.line().map(drop)
    }
}

/// What is measured.
pub(crate) struct Observer {
    player: Player,
}

impl Observer {
    pub(crate) fn start(role: &str, url: &str, pods: usize, events: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self { player: Player::start(role, &[url.to_owned(), pods.to_string(), events.to_string()])? })
    }

    /// Waits for the end of a phase.
    pub(crate) fn next_phase(&mut self) -> Result<Phase, Box<dyn Error>> {
        let [cpu, wall, resident, bodies] = self.player.numbers()?;
        Ok(Phase {
            cpu: Duration::from_nanos(cpu),
            wall: Duration::from_nanos(wall),
            resident: usize::try_from(resident)?,
            bodies: usize::try_from(bodies)?,
        })
    }
}

/// Tells the coordinating process what a phase cost.
pub(crate) fn report(phase: Phase) {
    println!("{} {} {} {}", phase.cpu.as_nanos(), phase.wall.as_nanos(), phase.resident, phase.bodies);
}
