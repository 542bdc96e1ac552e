package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *driver) NodeGetInfo(
	context.Context, *csi.NodeGetInfoRequest,
) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume mounts the directory of a volume.
func (d *driver) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	if _, exists := d.volumes.find(request.VolumeId); !exists {
		return nil, status.Error(codes.NotFound, "the volume does not exist")
	}
	if d.attachedTo(request.VolumeId) != d.node {
		return nil, status.Error(codes.FailedPrecondition, "the volume is not attached to this node")
	}
	target := request.TargetPath
	if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, err
	}
	mounted, err := isMounted(target)
	if err != nil || mounted {
		return &csi.NodePublishVolumeResponse{}, err
	}
	path := d.volumes.path(request.VolumeId)
	if err := syscall.Mount(path, target, "", syscall.MS_BIND, ""); err != nil {
		return nil, err
	}
	if request.Readonly {
		const flags = syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY
		err = syscall.Mount("", target, "", flags, "")
	}
	return &csi.NodePublishVolumeResponse{}, err
}

func (d *driver) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	mounted, err := isMounted(request.TargetPath)
	if err == nil && mounted {
		err = syscall.Unmount(request.TargetPath, 0)
	}
	if err == nil {
		err = os.Remove(request.TargetPath)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func isMounted(path string) (bool, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	return slices.ContainsFunc(strings.Split(string(content), "\n"), func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) > 4 && fields[4] == path
	}), err
}
