//! The other processes: started, spoken to in lines, ended.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::measure::Phase;

/// Comes before the role a process plays.
pub(crate) const ROLE_FLAG: &str = "--role";

/// A process that plays a role; killed when dropped.
struct Player {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Player {
    fn start(role: &str, args: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(env::current_exe()?)
            .args([ROLE_FLAG, role])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let hears = child.stdin.take().ok_or("no stdin")?;
        Ok(Self { child, says, hears })
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        if line.is_empty() { Err("a process of the bench has ended".into()) } else { Ok(line.trim().to_owned()) }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

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
        writeln!(self.player.hears, "{events}")?;
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
        let line = self.player.line()?;
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [cpu, wall, resident, bodies] = numbers[..] else { return Err(format!("unexpected line {line:?}").into()) };
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
