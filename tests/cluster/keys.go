package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	adminUser   = "admin"   // in system:masters: may do everything
	limitedUser = "limited" // in no group: may do what a test's own RBAC objects grant
	validity    = 10 * 365 * 24 * time.Hour
)

// Files in the data directory.
const (
	caCertFile         = "ca.crt"
	serverCertFile     = "server.crt"
	serverKeyFile      = "server.key"
	serviceAccountFile = "service-account.key"
	tokensFile         = "tokens.csv"
)

// ensureKeys makes the CA, the server's certificate and the service account key unless they exist.
// A CA proper and not a self-signed server certificate: rustls accepts no CA certificate as that of a server.
func ensureKeys(h home) error {
	if _, err := os.Stat(h.path(serviceAccountFile)); err == nil {
		return nil
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	notBefore := time.Now().Add(-time.Hour)
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test cluster CA"},
		NotBefore:             notBefore,
		NotAfter:              notBefore.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if err := writeCertificate(h.path(caCertFile), ca, ca, caKey.Public(), caKey); err != nil {
		return err
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    notBefore,
		NotAfter:     notBefore.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if err := writeCertificate(h.path(serverCertFile), server, ca, serverKey.Public(), caKey); err != nil {
		return err
	}
	serverDER, err := x509.MarshalECPrivateKey(serverKey)
	if err != nil {
		return err
	}
	if err := writePEM(h.path(serverKeyFile), "EC PRIVATE KEY", serverDER); err != nil {
		return err
	}
	// Last, because its presence says that all the others are complete.
	serviceAccountKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return writePEM(h.path(serviceAccountFile), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(serviceAccountKey))
}

func writeCertificate(path string, subject, issuer *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, subject, issuer, public, signer)
	if err != nil {
		return err
	}
	return writePEM(path, "CERTIFICATE", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

type tokens struct{ admin, limited string }

// ensureTokens makes the file for --token-auth-file unless it exists, and returns the tokens in it.
func ensureTokens(h home) (tokens, error) {
	text, err := os.ReadFile(h.path(tokensFile))
	if err != nil {
		text = fmt.Appendf(nil, "%s,%s,uid-1,\"system:masters\"\n%s,%s,uid-2\n", newToken(), adminUser, newToken(), limitedUser)
		if err := os.WriteFile(h.path(tokensFile), text, 0o600); err != nil {
			return tokens{}, err
		}
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 2 {
		return tokens{}, fmt.Errorf("%s has %d lines, not 2", h.path(tokensFile), len(lines))
	}
	token := func(line string) string { return strings.SplitN(line, ",", 2)[0] }
	return tokens{admin: token(lines[0]), limited: token(lines[1])}, nil
}

func newToken() string {
	secret := make([]byte, 16)
	rand.Read(secret) // never fails, says its documentation
	return hex.EncodeToString(secret)
}

// writeKubeconfig carries the CA inside, so that the file works wherever it is copied to.
func writeKubeconfig(h home, path, url, user, token string) error {
	ca, err := os.ReadFile(h.path(caCertFile))
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: user}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}
