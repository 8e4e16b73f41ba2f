//! The other processes: started, spoken to in lines, ended.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Comes before the role a process plays.
pub(crate) const ROLE_FLAG: &str = "--role";

/// A process that plays a role; killed when dropped.
pub(crate) struct Player {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Player {
    /// Starts this program again in a role.
    pub(crate) fn start(role: &str, args: &[String]) -> Result<Self, Box<dyn Error>> {
        Self::spawn(Command::new(env::current_exe()?).args([ROLE_FLAG, role]).args(args))
    }

    /// Starts any program that speaks in lines.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self, Box<dyn Error>> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let hears = child.stdin.take().ok_or("no stdin")?;
        Ok(Self { child, says, hears })
    }

    /// Waits for what it says next.
    pub(crate) fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        if line.is_empty() { Err("a process of the bench has ended".into()) } else { Ok(line.trim().to_owned()) }
    }

    /// Waits for a line of numbers.
    pub(crate) fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Box<dyn Error>> {
        let line = self.line()?;
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        numbers.try_into().map_err(|_| format!("unexpected line {line:?}").into())
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        Ok(writeln!(self.hears, "{line}")?)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns whether the filters among the arguments, if there are any, name this bench.
pub(crate) fn is_asked_for(bench: &str, args: &[String]) -> bool {
    let follows_a_flag = |at: usize| at > 0 && args[at - 1].starts_with("--");
    let mut filters = args.iter().enumerate().filter(|(at, arg)| !arg.starts_with('-') && !follows_a_flag(*at));
    let Some((_, first)) = filters.next() else { return true };
    bench.contains(&**first) || filters.any(|(_, filter)| bench.contains(&**filter))
}

/// Returns the criterion flag that makes a bench shorter.
pub(crate) fn sample_size(args: &[String]) -> Option<usize> {
    value_of("--sample-size", args)?.parse().ok()
}

/// Returns what stands behind a flag.
pub(crate) fn value_of<'a>(flag: &str, args: &'a [String]) -> Option<&'a str> {
    let at = args.iter().position(|arg| arg == flag)?;
    args.get(at + 1).map(String::as_str)
}
