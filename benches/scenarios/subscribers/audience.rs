//! Subscribers: a socket for each one, all on one thread, and the events that each received.

use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    net::SocketAddr,
    rc::Rc,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use memchr::{memchr_iter, memmem};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::mpsc,
    task::LocalSet,
};

use crate::harness::{Outcome, micros, now, percentile};

/// Time after the last change within which every subscriber must receive it.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes read at a time.
const BUFFER: usize = 64 << 10;
/// Interval of recorded lags: one in this number of a subscriber's events.
const SAMPLE: u64 = 16;
/// Receive buffer in bytes of a subscriber that does not read; it holds a few events.
const STUCK_BUFFER: u32 = 4 << 10;

/// Events that the subscribers received in one run.
#[derive(Clone, Copy, Default)]
pub(crate) struct Heard {
    /// Number of subscribers that received the right number of events, and the same ones.
    pub(crate) complete: u64,
    /// Events that came after a later one.
    pub(crate) disordered: u64,
    pub(crate) gaps: u64,
    /// Microseconds from the change at the API server to the subscriber's socket.
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

enum Order {
    /// Add subscribers, and some that do not read.
    Join { listening: usize, stuck: usize },
    /// Disconnect the subscribers that do not read.
    Unstick,
    /// Wait until all have received this number of events.
    Lap(u64),
}

/// The thread of all subscribers.
pub(crate) struct Audience {
    orders: mpsc::UnboundedSender<Order>,
    answers: Receiver<Heard>,
}

impl Audience {
    pub(crate) fn start(address: SocketAddr) -> Outcome<Self> {
        let (orders, told) = mpsc::unbounded_channel();
        let (says, answers) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::spawn(move || {
            if let Err(error) = LocalSet::new().block_on(&runtime, play(address, told, &says)) {
                eprintln!("the audience has ended: {error}");
            }
        });
        Ok(Self { orders, answers })
    }

    /// Adds subscribers, and some that do not read; returns when all streams are open.
    pub(crate) fn join(&self, listening: usize, stuck: usize) -> Outcome<()> {
        self.tell(Order::Join { listening, stuck }).map(drop)
    }

    /// Disconnects the subscribers that do not read.
    pub(crate) fn unstick(&self) -> Outcome<()> {
        self.tell(Order::Unstick).map(drop)
    }

    /// Waits until all have received this number of events, or no more arrive.
    pub(crate) fn lap(&self, events: u64) -> Outcome<Heard> {
        self.tell(Order::Lap(events))
    }

    fn tell(&self, order: Order) -> Outcome<Heard> {
        self.orders.send(order).map_err(|_| "the audience has ended")?;
        Ok(self.answers.recv()?)
    }
}

/// Events that one subscriber received since the last run.
#[derive(Default)]
struct Ear {
    events: u64,
    /// Hash of all their positions, in order of arrival.
    digest: u64,
    last: u64,
    /// Position of the event that is being read; `None` before the head of the stream.
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
    /// Streams that ended, or that were unreadable.
    ended: u64,
}

type Shared = Rc<RefCell<Notes>>;

async fn play(address: SocketAddr, mut told: mpsc::UnboundedReceiver<Order>, says: &Sender<Heard>) -> Outcome<()> {
    let (notes, buffer) = (Shared::default(), Rc::new(RefCell::new(vec![0; BUFFER])));
    let mut does_not_read = Vec::new();
    while let Some(order) = told.recv().await {
        let heard = match order {
            Order::Join { listening, stuck } => {
                let before = notes.borrow().ears.len();
                let all = before + listening;
                for number in before..all {
                    notes.borrow_mut().ears.push(Ear::default());
                    let stream = connect(address, None).await?;
                    let (notes, buffer) = (Rc::clone(&notes), Rc::clone(&buffer));
                    tokio::task::spawn_local(async move {
                        drop(listen(&stream, number, &notes, &buffer).await);
                        notes.borrow_mut().ended += 1;
                    });
                }
                for _ in 0..stuck {
                    let stream = connect(address, Some(STUCK_BUFFER)).await?;
                    stream.readable().await?; // the head has arrived
                    does_not_read.push(stream);
                }
                until(|| notes.borrow().placed == all).await?;
                Heard::default()
            }
            Order::Unstick => {
                does_not_read.clear();
                Heard::default()
            }
            Order::Lap(events) => {
                let is_heard = || notes.borrow().ears.iter().all(|ear| ear.events >= events);
                drop(until(is_heard).await); // a subscriber without all events counts as incomplete
                notes.borrow_mut().sum(events)
            }
        };
        says.send(heard)?;
    }
    Ok(())
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

/// Waits until a condition holds, with a timeout.
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

/// Reads a stream to its end. Chunk headers are read as lines without meaning: no chunk ends within a line of an event.
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
    /// Handles a line that a subscriber received.
    fn take(&mut self, number: usize, line: &[u8], now: u64) {
        let ear = &mut self.ears[number];
        if let Some(id) = line.strip_prefix(b"id: ") {
            // The head of a stream is followed by its start position.
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
            // A deleted object was written long before.
            let is_noted = (ear.events + number as u64).is_multiple_of(SAMPLE) && !ear.is_deleted;
            if let Some(at) = memmem::find(event, br#""stamp":""#).filter(|_| is_noted) {
                self.lags.push(now.saturating_sub(digits(&event[at + br#""stamp":""#.len()..])));
            }
        }
    }

    /// Returns the received events and resets the counters.
    fn sum(&mut self, events: u64) -> Heard {
        let first = self.ears.first().map(|ear| ear.digest);
        let is_complete = |ear: &&Ear| ear.events == events && Some(ear.digest) == first;
        let complete = self.ears.iter().filter(is_complete).count() as u64;
        let [p50, p99, max] = [50, 99, 100].map(|percent| percentile(&mut self.lags, percent));
        let heard = Heard { complete, disordered: self.disordered, gaps: self.gaps + self.ended, p50, p99, max };
        self.lags.clear();
        (self.disordered, self.gaps) = (0, 0);
        for ear in &mut self.ears {
            (ear.events, ear.digest) = (0, 0);
        }
        heard
    }
}

/// Parses the number at the start of a text.
fn digits(text: &[u8]) -> u64 {
    text.iter().take_while(|digit| digit.is_ascii_digit()).fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
}
