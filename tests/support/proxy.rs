//! A TCP proxy that cuts, delays and resets connections at random, and can refuse them.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use socket2::SockRef;

/// Faults of a connection, each in one of this number of chunks; 0 = never.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "each is one in so many")]
pub(crate) struct Faults {
    /// The connection is closed in the middle of a chunk.
    pub(crate) cut_one_in: u64,
    /// The connection is reset (RST).
    pub(crate) reset_one_in: u64,
    /// A chunk is delayed by up to 300 ms.
    pub(crate) delay_one_in: u64,
    /// A new connection is closed at once.
    pub(crate) refuse_one_in: u64,
}

/// A running proxy.
pub(crate) struct Proxy {
    /// Address for clients.
    pub(crate) address: SocketAddr,
    faults: Arc<Mutex<Faults>>,
    injected: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy to `upstream`; `seed` makes its choices repeatable as far as timing allows.
    pub(crate) fn start(upstream: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let proxy = Self {
            address: listener.local_addr().expect("bound"),
            faults: Arc::default(),
            injected: Arc::default(),
            stopped: Arc::default(),
        };
        let (faults, injected, stopped) = (proxy.faults.clone(), proxy.injected.clone(), proxy.stopped.clone());
        thread::spawn(move || {
            let mut dice = Dice(seed | 1);
            for client in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let now = *faults.lock().expect("not poisoned");
                if dice.one_in(now.refuse_one_in) {
                    injected.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let Ok(server) = TcpStream::connect(upstream) else { continue };
                let (Ok(client2), Ok(server2)) = (client.try_clone(), server.try_clone()) else { continue };
                let seed = dice.next();
                let (faults, injected) = (faults.clone(), injected.clone());
                let reset = Arc::new(AtomicBool::new(false));
                let (reset2, none) = (reset.clone(), Arc::new(Mutex::new(Faults::default())));
                thread::spawn(move || pump(server, client, seed, &faults, &injected, &reset));
                thread::spawn(move || pump(client2, server2, 0, &none, &AtomicU64::new(0), &reset2));
            }
        });
        proxy
    }

    /// Sets the faults from now on.
    pub(crate) fn set(&self, faults: Faults) {
        *self.faults.lock().expect("not poisoned") = faults;
    }

    /// Returns the number of injected faults.
    pub(crate) fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address)); // wakes the accept loop
    }
}

/// Copies one direction until its end; `reset` makes the other direction end the connection with RST.
fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    seed: u64,
    faults: &Mutex<Faults>,
    injected: &AtomicU64,
    reset: &AtomicBool,
) {
    let mut dice = Dice(seed | 1);
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let now = *faults.lock().expect("not poisoned");
        if dice.one_in(now.delay_one_in) {
            injected.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(dice.next() % 300));
        }
        if dice.one_in(now.cut_one_in) {
            injected.fetch_add(1, Ordering::Relaxed);
            drop(to.write_all(&buffer[..len / 2]));
            break;
        }
        if dice.one_in(now.reset_one_in) {
            injected.fetch_add(1, Ordering::Relaxed);
            reset.store(true, Ordering::SeqCst);
            for end in [&from, &to] {
                // Without lingering the last close sends RST. Shutting down our reads wakes the other direction without
                // sending anything.
                drop(SockRef::from(end).set_linger(Some(Duration::ZERO)));
                drop(end.shutdown(Shutdown::Read));
            }
            return;
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    if reset.load(Ordering::SeqCst) {
        return;
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}

/// An xorshift generator: good enough for faults, and repeatable.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.next().is_multiple_of(n)
    }
}
