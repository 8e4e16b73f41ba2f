//! The process that listens: a socket for each subscriber, all on one thread, and what each has heard.

use std::{
    cell::RefCell,
    io::{self, ErrorKind, stdin},
    net::SocketAddr,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use memchr::{memchr_iter, memmem};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::mpsc,
    task::LocalSet,
};

use crate::{Outcome, micros, open_as_many_files_as_allowed};

/// Who has not heard everything so long after the last change has missed something.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is read at a time.
const BUFFER: usize = 64 << 10;
/// Of so many events of a subscriber the lag of one is noted.
const SAMPLE: u64 = 16;
/// What a subscriber that does not read lets the system keep for it, in bytes: a few events.
const STUCK_BUFFER: u32 = 4 << 10;

/// What all heard in one run.
#[derive(Clone, Copy)]
pub(crate) struct Heard {
    /// Subscribers that have heard as many events as there were, and the same ones.
    pub(crate) complete: u64,
    /// Events that came behind a later one.
    pub(crate) disordered: u64,
    pub(crate) gaps: u64,
    /// Microseconds from the change at the API server to the subscriber's socket.
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Heard {
    pub(crate) fn read([complete, disordered, gaps, p50, p99, max]: [u64; 6]) -> Self {
        Self { complete, disordered, gaps, p50, p99, max }
    }
}

/// What one subscriber has heard since the last run.
#[derive(Default)]
struct Ear {
    events: u64,
    /// Of the places of all of them, in their order.
    digest: u64,
    last: u64,
    /// The place of the event that is being read; `None` before the head of the stream was read.
    place: Option<u64>,
    is_deleted: bool,
}

#[derive(Default)]
struct Notes {
    ears: Vec<Ear>,
    lags: Vec<u64>,
    placed: usize,
    disordered: u64,
    gaps: u64,
    /// Streams that ended, or could not be read.
    ended: u64,
}

type Shared = Rc<RefCell<Notes>>;

/// Listens, and does what each line on stdin says: `join LISTENING STUCK`, `lap EVENTS` or `unstick`.
pub(crate) fn play(address: &str) -> Outcome<()> {
    open_as_many_files_as_allowed()?;
    let address: SocketAddr = address.parse()?;
    let (lines, mut told) = mpsc::unbounded_channel();
    thread::spawn(move || stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let notes = Shared::default();
    LocalSet::new().block_on(&runtime, async {
        let buffer = Rc::new(RefCell::new(vec![0; BUFFER]));
        let mut stuck = Vec::new();
        while let Some(line) = told.recv().await {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["join", listening, more_stuck] => {
                    let before = notes.borrow().ears.len();
                    let all = before + listening.parse::<usize>()?;
                    for number in before..all {
                        notes.borrow_mut().ears.push(Ear::default());
                        let stream = connect(address, None).await?;
                        let (notes, buffer) = (Rc::clone(&notes), Rc::clone(&buffer));
                        tokio::task::spawn_local(async move {
                            drop(listen(&stream, number, &notes, &buffer).await);
                            notes.borrow_mut().ended += 1;
                        });
                    }
                    for _ in 0..more_stuck.parse()? {
                        let stream = connect(address, Some(STUCK_BUFFER)).await?;
                        stream.readable().await?; // the head has come
                        stuck.push(stream);
                    }
                    until(|| notes.borrow().placed == all).await?;
                    println!("{all}");
                }
                ["unstick"] => {
                    stuck.clear();
                    println!("0");
                }
                ["lap", events] => {
                    let events = events.parse()?;
                    let is_heard = || notes.borrow().ears.iter().all(|ear| ear.events >= events);
                    drop(until(is_heard).await); // who has not is not complete
                    println!("{}", notes.borrow_mut().sum(events));
                }
                _ => return Err(format!("unexpected line {line:?}").into()),
            }
        }
        Ok(())
    })
}

async fn connect(address: SocketAddr, buffer: Option<u32>) -> Outcome<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    let stream = socket.connect(address).await?;
    let request = format!("GET /v1/events HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n");
    stream.writable().await?;
    if stream.try_write(request.as_bytes())? != request.len() {
        return Err("a new socket has no room for a request".into());
    }
    Ok(stream)
}

/// Waits for something for a while.
async fn until(is_true: impl Fn() -> bool) -> Outcome<()> {
    let begin = now();
    while !is_true() {
        if begin.elapsed() > PATIENCE {
            return Err(format!("waited for {PATIENCE:?} in vain").into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Reads a stream to its end. Its chunks are read as lines that say nothing: none ends within a line of an event.
async fn listen(stream: &TcpStream, number: usize, notes: &Shared, buffer: &RefCell<Vec<u8>>) -> io::Result<()> {
    let mut rest = Vec::new();
    loop {
        stream.readable().await?;
        let mut buffer = buffer.borrow_mut();
        let len = match stream.try_read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let now = micros();
        let (mut notes, mut begin) = (notes.borrow_mut(), 0);
        for end in memchr_iter(b'\n', &buffer[..len]) {
            let piece = &buffer[begin..end];
            begin = end + 1;
            if rest.is_empty() {
                notes.take(number, piece, now);
            } else {
                rest.extend_from_slice(piece);
                notes.take(number, &rest, now);
                rest.clear();
            }
        }
        rest.extend_from_slice(&buffer[begin..len]);
    }
}

impl Notes {
    /// Takes a line that a subscriber has heard.
    fn take(&mut self, number: usize, line: &[u8], now: u64) {
        let ear = &mut self.ears[number];
        if let Some(id) = line.strip_prefix(b"id: ") {
            // The head of a stream is followed by the place where it begins.
            self.placed += usize::from(ear.place.is_none());
            ear.place = memmem::rfind(id, b".").map(|at| digits(&id[at + 1..]));
        } else if let Some(word) = line.strip_prefix(b"event: ") {
            ear.is_deleted = word == b"deleted";
            self.gaps += u64::from(word == b"gap");
        } else if let Some(event) = line.strip_prefix(b"data: ") {
            let place = ear.place.unwrap_or_default();
            self.disordered += u64::from(place <= ear.last);
            ear.last = place;
            ear.events += 1;
            ear.digest = (ear.digest ^ place).wrapping_mul(0x0100_0000_01b3);
            // What is deleted was written long before.
            let is_noted = (ear.events + number as u64).is_multiple_of(SAMPLE) && !ear.is_deleted;
            if let Some(at) = memmem::find(event, br#""stamp":""#).filter(|_| is_noted) {
                self.lags.push(now.saturating_sub(digits(&event[at + br#""stamp":""#.len()..])));
            }
        }
    }

    /// Says what was heard, and begins anew.
    fn sum(&mut self, events: u64) -> String {
        let first = self.ears.first().map(|ear| ear.digest);
        let is_complete = |ear: &&Ear| ear.events == events && Some(ear.digest) == first;
        let complete = self.ears.iter().filter(is_complete).count();
        self.lags.sort_unstable();
        let lag = |percent: usize| self.lags.get((self.lags.len() * percent / 100).min(self.lags.len().max(1) - 1));
        let [p50, p99, max] = [50, 99, 100].map(|percent| lag(percent).copied().unwrap_or_default());
        let line = format!("{complete} {} {} {p50} {p99} {max}", self.disordered, self.gaps + self.ended);
        self.lags.clear();
        (self.disordered, self.gaps) = (0, 0);
        for ear in &mut self.ears {
            (ear.events, ear.digest) = (0, 0);
        }
        line
    }
}

/// Reads the number that a text begins with.
fn digits(text: &[u8]) -> u64 {
    text.iter().take_while(|digit| digit.is_ascii_digit()).fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
}

#[expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]
fn now() -> Instant {
    Instant::now()
}
