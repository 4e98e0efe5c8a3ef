//! The least HTTP/1.1 that a load generator needs: one connection, one request after the other, bodies told by `content-length`.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One keep-alive connection.
pub struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    /// Connects to `127.0.0.1:port`.
    pub async fn open(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.context("cannot connect to the service")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, request: Vec::with_capacity(32 * 1024), answer: Vec::with_capacity(32 * 1024) })
    }

    /// Posts a JSON body; answers the body of a 200.
    pub async fn post(&mut self, path: &str, body: &[u8]) -> anyhow::Result<&[u8]> {
        let (status, start) = self.exchange(path, body).await?;
        if status != 200 {
            bail!("the service answered {}", String::from_utf8_lossy(&self.answer));
        }
        Ok(&self.answer[start..])
    }

    /// Posts a JSON body; answers the status.
    pub async fn status(&mut self, path: &str, body: &[u8]) -> anyhow::Result<u16> {
        Ok(self.exchange(path, body).await?.0)
    }

    /// The status, and where the answer's body begins.
    async fn exchange(&mut self, path: &str, body: &[u8]) -> anyhow::Result<(u16, usize)> {
        self.request.clear();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        loop {
            let n = self.stream.read_buf(&mut self.answer).await?;
            if n == 0 {
                bail!("the service closed the connection");
            }
            let Some(head_end) = find(&self.answer, b"\r\n\r\n") else { continue };
            let head = &self.answer[..head_end];
            let length = content_length(head).context("no content-length in the answer")?;
            let start = head_end + 4;
            if self.answer.len() < start + length {
                continue;
            }
            let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| digits.parse().ok());
            self.answer.truncate(start + length);
            return Ok((status.context("no status in the answer")?, start));
        }
    }
}

/// What a head says of its body.
pub fn content_length(head: &[u8]) -> Option<usize> {
    let at = find(head, b"content-length: ")?;
    let digits = head[at + 16..].iter().take_while(|b| b.is_ascii_digit());
    Some(digits.fold(0, |n, d| n * 10 + usize::from(d - b'0')))
}

/// Position of `needle`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(hay, needle)
}

/// How often `needle` occurs.
pub fn count(hay: &[u8], needle: &[u8]) -> usize {
    memchr::memmem::find_iter(hay, needle).count()
}
