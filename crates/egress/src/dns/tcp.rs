//! DNS over TCP: each message has its length before it (RFC 7766). Bounded in connections, questions per connection, size
//! of a question and time between two.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::dns::desk::{Desk, Session};
use crate::dns::question::QUESTION_MAX;

const CONNECTIONS_MAX: usize = 32;
const QUESTIONS_MAX: usize = 1_000;
/// For a whole question to arrive after the last answer, and for an answer to be taken.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// A failed accept is tried again after this time: there may be a descriptor then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const FAILURES_MAX: u32 = 100;

/// Answers until the listener fails for good. Dropping the future closes all its connections.
pub async fn serve<S: Session>(listener: TcpListener, desk: Arc<Desk<S>>) -> io::Error {
    let mut connections = JoinSet::new();
    let mut failures = 0;
    loop {
        // Beyond the limit, clients wait in the listener's queue.
        while connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _from)) => {
                    failures = 0;
                    let desk = Arc::clone(&desk);
                    connections.spawn(async move { converse(stream, &desk).await });
                }
                Err(error) => {
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return error;
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
}

/// Any error or excess ends the connection, which is all that its client needs to know.
async fn converse<T: AsyncRead + AsyncWrite + Unpin, S: Session>(mut stream: T, desk: &Desk<S>) {
    let mut buffer = [0; QUESTION_MAX];
    for _ in 0..QUESTIONS_MAX {
        let Ok(Some(count)) = timeout(IDLE_MAX, read(&mut stream, &mut buffer)).await else { return };
        let Some(reply) = desk.answer(&buffer[..count], Instant::now()) else { return };
        let mut message = Vec::with_capacity(2 + reply.len());
        message.extend((reply.len() as u16).to_be_bytes());
        message.extend(reply);
        match timeout(IDLE_MAX, stream.write_all(&message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

async fn read<T: AsyncRead + Unpin>(stream: &mut T, buffer: &mut [u8]) -> Option<usize> {
    let count = usize::from(stream.read_u16().await.ok()?);
    stream.read_exact(buffer.get_mut(..count)?).await.ok()?;
    Some(count)
}

#[cfg(test)]
mod tests {
    use saggar_domain::net::{EgressDraft, NetDecision, Rules};
    use tokio::io::duplex;

    use super::*;
    use crate::dns::suspicion::Suspects;
    use crate::names::Names;

    #[derive(Default)]
    struct Nothing(Suspects);

    impl Session for Nothing {
        fn rules(&self) -> Arc<Rules> {
            Arc::new(Rules::new(EgressDraft::default()).unwrap())
        }

        fn record(&self, _: NetDecision) {}

        fn suspects(&self) -> &Suspects {
            &self.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_is_closed_and_its_questions_are_counted() {
        let desk = Desk::new(Arc::new(Names::default()), Arc::<Nothing>::default());
        let question = b"\0\x1b\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01";
        let question = [&27_u16.to_be_bytes(), &question[2..]].concat();

        // Nothing more comes: the clock runs on to the limit.
        let (mut client, server) = duplex(64 * 1024);
        client.write_all(&question[..9]).await.unwrap();
        let start = tokio::time::Instant::now();
        converse(server, &desk).await;
        assert!((IDLE_MAX..IDLE_MAX * 2).contains(&start.elapsed()), "{:?}", start.elapsed());

        let (mut client, server) = duplex(256 * 1024);
        client.write_all(&question.repeat(QUESTIONS_MAX + 1)).await.unwrap();
        converse(server, &desk).await;
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).await.unwrap();
        assert_eq!(replies.len(), QUESTIONS_MAX * (question.len() + 16));
    }
}
