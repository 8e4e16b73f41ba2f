package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"deltabus.dev/cluster/internal/tool"
)

const (
	adminUser   = "admin"   // in system:masters: has all rights
	limitedUser = "limited" // in no group: has only the rights of a test's own RBAC objects
)

// Files in the data directory.
const (
	caCertFile         = "ca.crt"
	serverCertFile     = "server.crt"
	serverKeyFile      = "server.key"
	serviceAccountFile = "service-account.key"
	tokensFile         = "tokens.csv"
)

// ensureKeys creates the CA, the server's certificate and the service account key unless they exist.
func ensureKeys(h home) error {
	if _, err := os.Stat(h.path(serviceAccountFile)); err == nil {
		return nil
	}
	if err := tool.WriteCertificates(string(h), "server"); err != nil {
		return err
	}
	// Written last: its presence shows that all other files are complete.
	serviceAccountKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return tool.WritePEM(h.path(serviceAccountFile), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(serviceAccountKey))
}

type tokens struct{ admin, limited string }

// ensureTokens creates the file for --token-auth-file unless it exists, and returns its tokens.
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
	rand.Read(secret) // never fails, according to its documentation
	return hex.EncodeToString(secret)
}

// writeKubeconfig embeds the CA, so that copies of the file work.
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
