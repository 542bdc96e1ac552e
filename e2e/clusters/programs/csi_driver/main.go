// A CSI driver whose volumes are directories of its node, for tests.
//
// It provisions, clones, takes and restores snapshots, and mounts for the kubelet. A volume must be
// attached to the node before it is mounted, and is attached to one node at a time; one that is
// attached is not deleted. The sidecars of Kubernetes run beside it. Nothing limits what a pod writes
// to a volume.
package main

import (
	"context"
	"flag"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	name, socket, node string
	volumes, snapshots store
	attached           string
}

func main() {
	d := &driver{}
	flag.StringVar(&d.name, "name", "", "name of the driver")
	flag.StringVar(&d.socket, "socket", "", "socket of the CSI services")
	flag.StringVar(&d.node, "node", "", "name of the node")
	folder := flag.String("folder", "", "folder of all volumes")
	registry := flag.String("registry", "", "folder of the sockets by which kubelets find drivers")
	flag.Parse()
	d.volumes = store{filepath.Join(*folder, "volumes")}
	d.snapshots = store{filepath.Join(*folder, "snapshots")}
	d.attached = filepath.Join(*folder, "attached")
	for _, each := range []string{d.volumes.folder, d.snapshots.folder, d.attached, *registry} {
		if err := os.MkdirAll(each, 0o755); err != nil {
			klog.Fatal(err)
		}
	}
	services := grpc.NewServer()
	csi.RegisterIdentityServer(services, d)
	csi.RegisterControllerServer(services, d)
	csi.RegisterNodeServer(services, d)
	serve(services, d.socket)

	kubelets := grpc.NewServer()
	registration.RegisterRegistrationServer(kubelets, d)
	own := filepath.Join(*registry, "csi.sock")
	serve(kubelets, own)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	_ = os.Remove(own)
}

func serve(server *grpc.Server, socket string) {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		klog.Fatal(err)
	}
	go func() { klog.Fatal(server.Serve(listener)) }()
}

// GetInfo tells a kubelet where the services are.
func (d *driver) GetInfo(
	context.Context, *registration.InfoRequest,
) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: d.name, Endpoint: d.socket,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus ends the driver if the kubelet rejects it.
func (d *driver) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		klog.Fatal("the kubelet rejects the driver: ", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) GetPluginInfo(
	context.Context, *csi.GetPluginInfoRequest,
) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{
		Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: service}},
	}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
