//! A gate before a server: closed, stalled, or without answers.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Behaviour of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// Passes everything.
    Open,
    /// Breaks every connection, old and new.
    Shut,
    /// Accepts connections and passes nothing; held data continue when it opens.
    Stuck,
    /// Passes requests but no answers.
    Mute,
}

/// A TCP proxy on its own port.
pub(crate) struct Gate {
    /// Address for clients.
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    moved: Condvar,
}

struct State {
    door: Door,
    /// Set when the gate is dropped.
    ended: bool,
    connections: Vec<TcpStream>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the gate is stalled; returns its behaviour.
    fn door(&self) -> Door {
        let stuck = |state: &mut State| state.door == Door::Stuck && !state.ended;
        self.moved.wait_while(self.state(), stuck).unwrap_or_else(PoisonError::into_inner).door
    }
}

impl Gate {
    /// Starts an open gate before `upstream`.
    pub(crate) fn before(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("bound");
        let state = State { door: Door::Open, ended: false, connections: Vec::new() };
        let shared = Arc::new(Shared { state: Mutex::new(state), moved: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut state = accepting.state();
                if state.ended {
                    return;
                }
                if state.door == Door::Shut {
                    continue;
                }
                let Ok(server) = TcpStream::connect(upstream) else { continue };
                let (Ok(client2), Ok(server2)) = (client.try_clone(), server.try_clone()) else { continue };
                state.connections.extend([client.try_clone(), server.try_clone()].into_iter().flatten());
                drop(state);
                let (requests, answers) = (Arc::clone(&accepting), Arc::clone(&accepting));
                thread::spawn(move || pump(client, server, &requests, Door::Shut));
                thread::spawn(move || pump(server2, client2, &answers, Door::Mute));
            }
        });
        Self { address, shared }
    }

    /// Sets the behaviour from now on. Connections with lost answers are broken.
    pub(crate) fn set(&self, door: Door) {
        let mut state = self.shared.state();
        if door == Door::Shut || state.door == Door::Mute {
            for connection in state.connections.drain(..) {
                drop(connection.shutdown(Shutdown::Both));
            }
        }
        state.door = door;
        self.shared.moved.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.set(Door::Shut);
        self.shared.state().ended = true;
        self.shared.moved.notify_all();
        drop(TcpStream::connect(self.address)); // wakes the accept loop
    }
}

/// Copies one direction until its end; data that arrive in the state `deaf` are lost.
fn pump(mut from: TcpStream, mut to: TcpStream, shared: &Shared, deaf: Door) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if shared.door() != deaf && to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
