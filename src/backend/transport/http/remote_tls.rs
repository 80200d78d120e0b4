//! TLS to servers: whose certificates are accepted, and which one is shown.
//!
//! Called by `http_client` and `websocket` whenever connections are to be opened, so that files which were
//! replaced count from then on.

use std::{fmt, path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use sha2::{Digest, Sha256};

use crate::{
    backend::BackendError,
    config::{Remote, RemoteTls},
};

/// What TLS to `remote` is like; without any roots where it is not needed.
pub(in crate::backend) fn config(remote: &Remote) -> Result<ClientConfig, BackendError> {
    let tls = &remote.tls;
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(&error))?;
    if !matches!(remote.url.scheme_str(), Some("https" | "wss")) {
        let nobody = builder.with_root_certificates(RootCertStore::empty());
        return Ok(nobody.with_no_client_auth());
    }
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(RemoteVerifier::new(tls, provider)?));
    let (Some(cert), Some(key)) = (&tls.client_cert, &tls.client_key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = read_certificates("client_cert", cert)?;
    let key_der = PrivateKeyDer::from_pem_file(key);
    let key_der = key_der.map_err(|error| file_error("client_key", key, &error))?;
    let builder = builder.with_client_auth_cert(chain, key_der);
    builder.map_err(|error| file_error("client_key", key, &error))
}

fn read_certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, BackendError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(|error| file_error(key, path, &error))?;
    if read.is_empty() {
        return Err(file_error(key, path, &"there is no certificate in it"));
    }
    Ok(read)
}

fn file_error(key: &str, path: &Path, why: &dyn fmt::Display) -> BackendError {
    tls_error(&format!("`tls.{key}`: {}: {why}", path.display()))
}

fn tls_error(why: &dyn fmt::Display) -> BackendError {
    BackendError::Tls {
        reason: why.to_string(),
    }
}

/// Decides about the certificate of a server.
#[derive(Debug)]
struct RemoteVerifier {
    /// `None` where there are no roots.
    roots: Option<Arc<WebPkiServerVerifier>>,
    /// Accepted as they are.
    pinned: Vec<CertificateDer<'static>>,
    /// In lower case; nothing else is accepted then.
    fingerprint: Option<String>,
    accepts_all: bool,
    provider: Arc<CryptoProvider>,
}

impl RemoteVerifier {
    fn new(tls: &RemoteTls, provider: Arc<CryptoProvider>) -> Result<Self, BackendError> {
        let pinned = match &tls.ca {
            Some(path) => read_certificates("ca", path)?,
            None => Vec::new(),
        };
        let native = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(native.certs);
        roots.add_parsable_certificates(pinned.iter().cloned());
        let needs_roots = tls.fingerprint.is_none() && !tls.danger_accept_invalid;
        if roots.is_empty() && needs_roots && pinned.is_empty() {
            return Err(tls_error(&"no native root CA certificates found"));
        }
        let verifier = (!roots.is_empty()).then(|| {
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
        });
        Ok(Self {
            roots: verifier.transpose().map_err(|error| tls_error(&error))?,
            pinned,
            fingerprint: tls.fingerprint.clone(),
            accepts_all: tls.danger_accept_invalid,
            provider,
        })
    }
}

impl ServerCertVerifier for RemoteVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(expected) = &self.fingerprint {
            let found = hex::encode(Sha256::digest(end_entity));
            if found == *expected {
                return Ok(ServerCertVerified::assertion());
            }
            return Err(rustls::Error::General(format!(
                "the certificate of the server has the SHA-256 fingerprint {found}, which is not \
                 that of `tls.fingerprint`"
            )));
        }
        if self.accepts_all || self.pinned.contains(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        let Some(roots) = &self.roots else {
            return Err(rustls::CertificateError::UnknownIssuer.into());
        };
        roots.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        None
    }
}
