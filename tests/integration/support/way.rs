//! A way to a server that can be shut: then nobody listens, as while the server starts anew. And one that
//! leads through TLS.

use std::{net::SocketAddr, sync::Arc};

use rustls::ServerConfig;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::wire::spawn;

/// The way to a server. While it is shut, nobody listens there.
pub(crate) struct Way {
    to: SocketAddr,
    /// Keeps the port from being given to anybody else meanwhile.
    place: TcpSocket,
    shut: CancellationToken,
    forwarding: Option<JoinHandle<()>>,
}

impl Way {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let mut way = Self {
            to,
            place: bound("127.0.0.1:0".parse().unwrap()),
            shut: CancellationToken::new(),
            forwarding: None,
        };
        way.open();
        way
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.place.local_addr().unwrap())
    }

    pub(crate) fn open(&mut self) {
        let listener = bound(self.place.local_addr().unwrap());
        let listener = listener.listen(64).unwrap();
        self.shut = CancellationToken::new();
        let (shut, to) = (self.shut.clone(), self.to);
        self.forwarding = Some(spawn(async move {
            while let Some(Ok((mut from, _))) = shut.run_until_cancelled(listener.accept()).await {
                let shut = shut.clone();
                spawn(async move {
                    let forwarding = async {
                        let mut to = TcpStream::connect(to).await?;
                        copy_bidirectional(&mut from, &mut to).await
                    };
                    drop(shut.run_until_cancelled(forwarding).await);
                });
            }
        }));
    }

    /// Breaks what is open; no connection comes about any more.
    pub(crate) async fn shut(&mut self) {
        self.shut.cancel();
        if let Some(forwarding) = self.forwarding.take() {
            forwarding.await.unwrap();
        }
    }
}

fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// A way to a server that leads through TLS: gives where it begins.
#[allow(dead_code, reason = "only tests of certificates need it")]
pub(crate) async fn inside_tls(to: SocketAddr, config: ServerConfig) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            spawn(async move {
                // Who does not believe the certificate ends the handshake.
                let mut from = acceptor.accept(from).await?;
                let mut to = TcpStream::connect(to).await?;
                copy_bidirectional(&mut from, &mut to).await
            });
        }
    });
    at
}
