//! Writes the output on a thread of its own: a reader that pauses must not hold up answers, nor Ctrl-C.

use std::io::{self, Write};
use std::thread;

use tokio::sync::{mpsc, oneshot};

/// Texts that wait to be written.
const TEXTS_WAITING: usize = 4;

/// Whole lines on their way out.
#[derive(Debug)]
pub struct Output {
    texts: mpsc::Sender<Vec<u8>>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Output {
    pub fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (texts, taken) = mpsc::channel(TEXTS_WAITING);
        let (tell, ended) = oneshot::channel();
        thread::Builder::new().name("filter-output".to_owned()).spawn(move || tell.send(write_all(sink, taken)).ok())?;
        Ok(Self { texts, ended })
    }

    /// Hands whole lines on. False once the output has failed; [`Self::finish`] says why.
    pub async fn write(&self, text: Vec<u8>) -> bool {
        text.is_empty() || self.texts.send(text).await.is_ok()
    }

    /// Waits until all is written.
    pub async fn finish(self) -> io::Result<()> {
        drop(self.texts);
        self.ended.await.unwrap_or_else(|_| Err(io::Error::other("the thread that writes has ended")))
    }
}

fn write_all(mut sink: impl Write, mut texts: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(text) = texts.blocking_recv() {
        sink.write_all(&text)?;
        // A last line without an end would stay in the buffer of a terminal's stream.
        sink.flush()?;
    }
    Ok(())
}
