//! A TCP proxy that misbehaves on command: what lies between an instance and a home, its Redis, or its callers, when a test wants to break it.

mod commits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::Error;
use commits::{Commits, Replies};

/// What happens to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They pass.
    Pass,
    /// What the client sends arrives; what the server answers is lost. (A connection that lost something ends with what comes after it.)
    LoseReplies,
    /// What the client sends is lost.
    LoseRequests,
    /// New connections are closed at once.
    Refuse,
    /// Both directions are lost.
    LoseBoth,
    /// Nothing is carried; it all arrives once this ends.
    Stall,
}

/// What happens to single calls, by chance: of a million each. On a Postgres line a call is a statement that may commit (the rest passes
/// untouched); on any other line it is what the client sends in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Odds {
    /// It is carried out, and the connection ends before the reply comes back.
    pub eat_reply: u32,
    /// The connection ends before it arrives.
    pub drop_call: u32,
    /// Its reply comes late, by [`Odds::late`].
    pub delay_reply: u32,
    /// How late.
    pub late: Duration,
}

/// A listener on loopback in front of one server.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: AtomicU16,
    postgres: bool,
    mode: AtomicU8,
    /// Per direction: to the server, to the client.
    delay_ms: [AtomicU64; 2],
    jitter_ms: AtomicU64,
    odds: [AtomicU32; 3],
    late_ms: AtomicU64,
    reset: std::sync::atomic::AtomicBool,
    accepted: AtomicU64,
    lost: AtomicU64,
    hit: [AtomicU64; 3],
    cut: watch::Sender<u64>,
}

/// What chance decided for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    EatReply = 0,
    DropCall = 1,
    DelayReply = 2,
}

impl Shared {
    fn mode(&self) -> Mode {
        match self.mode.load(Ordering::SeqCst) {
            0 => Mode::Pass,
            1 => Mode::LoseReplies,
            2 => Mode::LoseRequests,
            3 => Mode::Refuse,
            4 => Mode::LoseBoth,
            _ => Mode::Stall,
        }
    }

    fn delay(&self, direction: Direction) -> Duration {
        let jitter = self.jitter_ms.load(Ordering::SeqCst);
        let jitter = if jitter == 0 { 0 } else { rand::random_range(0..=jitter) };
        Duration::from_millis(self.delay_ms[direction as usize].load(Ordering::SeqCst) + jitter)
    }

    /// Draws what is to happen to a call.
    fn draw(&self) -> Option<Fate> {
        let drawn = rand::random_range(0..1_000_000u32);
        let mut below = 0;
        for fate in [Fate::EatReply, Fate::DropCall, Fate::DelayReply] {
            below += self.odds[fate as usize].load(Ordering::SeqCst);
            if drawn < below {
                self.hit[fate as usize].fetch_add(1, Ordering::SeqCst);
                return Some(fate);
            }
        }
        None
    }

    fn late(&self) -> Duration {
        Duration::from_millis(self.late_ms.load(Ordering::SeqCst))
    }
}

impl Proxy {
    /// Listens on a free port and forwards to `target` on loopback. Lives as long as the runtime it was started on.
    ///
    /// # Errors
    /// If no port can be listened on.
    pub async fn start(target: u16) -> Result<Self, Error> {
        Self::listen(target, false).await
    }

    /// The same in front of a Postgres: it reads along and knows the statements that commit.
    ///
    /// # Errors
    /// If no port can be listened on.
    pub async fn start_postgres(target: u16) -> Result<Self, Error> {
        Self::listen(target, true).await
    }

    async fn listen(target: u16, postgres: bool) -> Result<Self, Error> {
        let listener = TcpListener::bind(("127.0.0.1", crate::ports::free().map_err(|e| Error::Proxy(e.to_string()))?))
            .await
            .map_err(|e| Error::Proxy(e.to_string()))?;
        let port = listener.local_addr().map_err(|e| Error::Proxy(e.to_string()))?.port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target),
            postgres,
            mode: AtomicU8::new(0),
            delay_ms: Default::default(),
            jitter_ms: AtomicU64::new(0),
            odds: Default::default(),
            late_ms: AtomicU64::new(0),
            reset: false.into(),
            accepted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            hit: Default::default(),
            cut: watch::Sender::new(0),
        });
        let accepting = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepting.accepted.fetch_add(1, Ordering::SeqCst);
                if accepting.mode() != Mode::Refuse {
                    tokio::spawn(carry(client, Arc::clone(&accepting)));
                }
            }
        });
        Ok(Self { port, shared })
    }

    /// Port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards new connections to another port.
    pub fn set_target(&self, port: u16) {
        self.shared.target.store(port, Ordering::SeqCst);
    }

    /// Changes what happens to bytes from now on, on open connections too.
    pub fn set_mode(&self, mode: Mode) {
        self.shared.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Delays every chunk by this, in each direction.
    pub fn set_delay(&self, delay: Duration) {
        self.set_delays(delay, delay, Duration::ZERO);
    }

    /// Delays every chunk to the server and to the client, by up to `jitter` more.
    pub fn set_delays(&self, to_server: Duration, to_client: Duration, jitter: Duration) {
        let ms = |delay: Duration| u64::try_from(delay.as_millis()).unwrap_or(0);
        self.shared.delay_ms[0].store(ms(to_server), Ordering::SeqCst);
        self.shared.delay_ms[1].store(ms(to_client), Ordering::SeqCst);
        self.shared.jitter_ms.store(ms(jitter), Ordering::SeqCst);
    }

    /// Changes what may happen to single calls.
    pub fn set_odds(&self, odds: Odds) {
        self.shared.late_ms.store(u64::try_from(odds.late.as_millis()).unwrap_or(0), Ordering::SeqCst);
        for (place, odds) in self.shared.odds.iter().zip([odds.eat_reply, odds.drop_call, odds.delay_reply]) {
            place.store(odds, Ordering::SeqCst);
        }
    }

    /// Closes every open connection.
    pub fn cut(&self) {
        self.shared.reset.store(false, Ordering::SeqCst);
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// Resets every open connection: both ends get an error at once, and what was under way is lost.
    pub fn reset(&self) {
        self.shared.reset.store(true, Ordering::SeqCst);
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Bytes lost so far: shows that a fault happened.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Calls whose reply was eaten, that were dropped, and whose reply was delayed, so far.
    #[must_use]
    pub fn hits(&self) -> [u64; 3] {
        [0, 1, 2].map(|i: usize| self.shared.hit[i].load(Ordering::SeqCst))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer = 0,
    ToClient = 1,
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", shared.target.load(Ordering::SeqCst))).await else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let mut cut = shared.cut.subscribe();
    cut.borrow_and_update();
    let replies = Arc::new(Replies::default());
    let mut commits = Commits::new(shared.postgres, Arc::clone(&replies));
    let to_server = pump(client_read, server_write, &shared, Direction::ToServer, |chunk| match commits.sent(chunk, || shared.draw()) {
        Some(Fate::DropCall) => Carry::End,
        _ => Carry::On,
    });
    let to_client = pump(server_read, client_write, &shared, Direction::ToClient, |chunk| match replies.come(chunk) {
        Some(Fate::EatReply) => Carry::End,
        Some(Fate::DelayReply) => Carry::After(shared.late()),
        _ => Carry::On,
    });
    tokio::select! {
        () = to_server => {}
        () = to_client => {}
        _ = cut.changed() => {}
    }
}

/// What is to be done with a chunk.
enum Carry {
    On,
    After(Duration),
    End,
}

/// Makes the end of the connection a reset, if one was asked for, whichever way this pump ends.
struct Ending<'a> {
    shared: &'a Shared,
    to: OwnedWriteHalf,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if self.shared.reset.load(Ordering::SeqCst) {
            let _ = self.to.as_ref().set_zero_linger();
        }
    }
}

/// Carries one direction. Chunks keep their delay without holding up each other, as on a long line.
async fn pump(mut from: OwnedReadHalf, to: OwnedWriteHalf, shared: &Shared, direction: Direction, mut look: impl FnMut(&[u8]) -> Carry) {
    let mut ending = Ending { shared, to };
    let (chunks, mut late) = tokio::sync::mpsc::channel::<(tokio::time::Instant, Vec<u8>)>(1024);
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        let mut broken = false;
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            while shared.mode() == Mode::Stall {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let loses = match shared.mode() {
                Mode::LoseBoth => true,
                Mode::LoseRequests => direction == Direction::ToServer,
                Mode::LoseReplies => direction == Direction::ToClient,
                _ => false,
            };
            if loses {
                shared.lost.fetch_add(n as u64, Ordering::SeqCst);
                broken = true;
                continue;
            }
            // No network carries what comes after lost bytes: a peer would read one message's end as another's.
            if broken {
                return;
            }
            let mut due = tokio::time::Instant::now() + shared.delay(direction);
            match look(&buffer[..n]) {
                Carry::On => {}
                Carry::After(late) => due += late,
                Carry::End => return,
            }
            if chunks.send((due, buffer[..n].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let to = &mut ending.to;
    let writing = async {
        while let Some((due, chunk)) = late.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}
