//! A TCP proxy that misbehaves on command: what lies between an instance and a home, when a test wants to break it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::Error;

/// What happens to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They pass.
    Pass,
    /// What the client sends arrives; what the server answers is lost.
    LoseReplies,
    /// What the client sends is lost.
    LoseRequests,
    /// New connections are closed at once.
    Refuse,
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
    mode: AtomicU8,
    delay_ms: AtomicU64,
    accepted: AtomicU64,
    lost: AtomicU64,
    cut: watch::Sender<u64>,
}

impl Shared {
    fn mode(&self) -> Mode {
        match self.mode.load(Ordering::SeqCst) {
            0 => Mode::Pass,
            1 => Mode::LoseReplies,
            2 => Mode::LoseRequests,
            _ => Mode::Refuse,
        }
    }
}

impl Proxy {
    /// Listens on a free port and forwards to `target` on loopback. Lives as long as the runtime it was started on.
    ///
    /// # Errors
    /// If no port can be listened on.
    pub async fn start(target: u16) -> Result<Self, Error> {
        let listener = TcpListener::bind(("127.0.0.1", crate::ports::free().map_err(|e| Error::Proxy(e.to_string()))?))
            .await
            .map_err(|e| Error::Proxy(e.to_string()))?;
        let port = listener.local_addr().map_err(|e| Error::Proxy(e.to_string()))?.port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target),
            mode: AtomicU8::new(0),
            delay_ms: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
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

    /// Changes what happens to bytes from now on, on open connections too.
    pub fn set_mode(&self, mode: Mode) {
        self.shared.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Delays every chunk by this, in each direction.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(0), Ordering::SeqCst);
    }

    /// Closes every open connection.
    pub fn cut(&self) {
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
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", shared.target.load(Ordering::SeqCst))).await else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let mut cut = shared.cut.subscribe();
    cut.borrow_and_update();
    tokio::select! {
        () = pump(client_read, server_write, &shared, Mode::LoseRequests) => {}
        () = pump(server_read, client_write, &shared, Mode::LoseReplies) => {}
        _ = cut.changed() => {}
    }
}

/// Carries one direction. Chunks keep their delay without holding up each other, as on a long line.
async fn pump(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, shared: &Shared, loses_in: Mode) {
    let (chunks, mut late) = tokio::sync::mpsc::channel::<(tokio::time::Instant, Vec<u8>)>(1024);
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            if shared.mode() == loses_in {
                shared.lost.fetch_add(n as u64, Ordering::SeqCst);
                continue;
            }
            let due = tokio::time::Instant::now() + Duration::from_millis(shared.delay_ms.load(Ordering::SeqCst));
            if chunks.send((due, buffer[..n].to_vec())).await.is_err() {
                return;
            }
        }
    };
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
