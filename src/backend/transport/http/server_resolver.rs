//! Where servers may be reached: the operator wrote their URLs, so that they may be anywhere but at link-local addresses
//! and metadata services of clouds, or at public ones alone (`egress` of the server). A name is judged by the addresses
//! that it leads to.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    vec,
};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

use crate::{
    backend::BackendError,
    config::{Remote, ServerEgress},
    egress::EgressRules,
};

/// Resolves names of servers; those of proxies lead anywhere.
#[derive(Clone, Debug)]
pub(crate) struct ServerResolver {
    system: GaiResolver,
    rules: Option<Arc<EgressRules>>,
}

impl ServerResolver {
    /// For connections to `remote`, or to the proxy before it.
    ///
    /// # Errors
    /// Where it may not be reached, as far as its URL tells.
    pub(crate) fn new(remote: &Remote) -> Result<Self, BackendError> {
        let rules = EgressRules::for_servers(&remote.egress_allow);
        let rules = match remote.egress {
            ServerEgress::Any => rules,
            ServerEgress::Public => rules.with_public_servers(),
        };
        let checked = rules.check_server(remote.url.host().unwrap_or_default());
        checked.map_err(|why| BackendError::Connect {
            reason: why.to_string(),
        })?;
        Ok(Self {
            rules: remote.proxy.is_none().then(|| Arc::new(rules)),
            ..Self::unrestricted()
        })
    }

    /// For connections anywhere.
    pub(crate) fn unrestricted() -> Self {
        Self {
            system: GaiResolver::new(),
            rules: None,
        }
    }
}

impl Service<Name> for ServerResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let host = name.as_str().to_owned();
        let (resolving, rules) = (self.system.call(name), self.rules.clone());
        Box::pin(async move {
            let found = resolving.await?;
            let Some(rules) = rules else {
                return Ok(found.collect::<Vec<_>>().into_iter());
            };
            allowed(&host, found, &rules).map(Vec::into_iter)
        })
    }
}

/// Those of the addresses `found` of `host` that may be reached.
fn allowed(
    host: &str,
    found: impl Iterator<Item = SocketAddr>,
    rules: &EgressRules,
) -> io::Result<Vec<SocketAddr>> {
    let mut refused = None;
    let check = |address: &SocketAddr| {
        let checked = rules.check_server_address(host, address.ip());
        checked.map_err(|why| refused = Some(why)).is_ok()
    };
    let allowed: Vec<_> = found.filter(check).collect();
    match refused {
        Some(why) if allowed.is_empty() => Err(io::Error::other(why)),
        Some(_) | None => Ok(allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_only_where_servers_may_be() {
        let addresses = |list: &[&str]| {
            list.iter()
                .map(|it| it.parse().unwrap())
                .collect::<Vec<_>>()
        };
        let found = addresses(&["169.254.169.254:0", "10.0.0.1:0"]);
        let rules = EgressRules::for_servers(&[]);
        let kept = allowed("a.example", found.clone().into_iter(), &rules).unwrap();
        assert_eq!(kept, found[1..]);
        let error = allowed("a.example", found[..1].iter().copied(), &rules).unwrap_err();
        let expect = "a.example is at 169.254.169.254, which is link-local";
        assert!(error.to_string().contains(expect), "{error}");
        let listed = EgressRules::for_servers(&["169.254.0.0/16".parse().unwrap()]);
        assert_eq!(
            allowed("a.example", found.clone().into_iter(), &listed).unwrap(),
            found
        );
        assert!(
            allowed("a.example", [].into_iter(), &rules)
                .unwrap()
                .is_empty()
        );
    }

    #[tokio::test]
    async fn names_are_resolved() {
        let remote = Remote::example(&"http://localhost:1/".parse().unwrap());
        let mut resolver = ServerResolver::new(&remote).unwrap();
        let found = resolver.call("localhost".parse().unwrap()).await.unwrap();
        assert!(found.into_iter().all(|it| it.ip().is_loopback()));
        for url in [
            "http://169.254.169.254/",
            "https://metadata.google.internal/",
        ] {
            let refused = ServerResolver::new(&Remote::example(&url.parse().unwrap()));
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("egress.allow"), "{error}");
        }
    }
}
